/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program says, and whether it could.
 */
#ifndef FSTFS_COMMON_SAY_H
#define FSTFS_COMMON_SAY_H

#include "base/buffer.h"

#include <stdio.h>

/* One line to standard error, behind the program's name. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Writes all of it now. False where it could not be, or where the text could not
 * be made for want of memory. */
bool write_out(FILE *file, const struct buffer *text);

#endif
