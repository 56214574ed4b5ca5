/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FSTFS_BASE_USER_NAMESPACE_H
#define FSTFS_BASE_USER_NAMESPACE_H

#include <stdbool.h>

/* Whether the user namespace of this process is the initial one, or maps all users to the same
 * numbers (user_namespaces(7)). False if that cannot be read. Any thread. */
bool user_namespace_is_initial(void);

#endif
