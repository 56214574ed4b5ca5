/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far the time stamps of a file can be trusted.
 */
#ifndef FSTFS_BASE_TIMESTAMP_H
#define FSTFS_BASE_TIMESTAMP_H

#include "base/clock.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/*
 * Returns how many nanoseconds to wait until every later change of the file gets a change time
 * other than `changed`; 0: no need to wait. Every time stamp is a multiple of the file system's
 * granularity, so the largest power of ten that divides `changed` bounds it from above. `local`:
 * the file system uses this machine's clock.
 */
uint64_t timestamp_settle_ns(const struct timespec *changed, bool local);

/* Whether `changed` is less than `seconds` ago, or in the future, by this machine's clock. */
bool timestamp_is_recent(const struct timespec *changed, unsigned seconds);

#endif
