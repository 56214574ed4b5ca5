/* SPDX-License-Identifier: Apache-2.0 */
/* Shows text on the whole terminal at standard output, and restores it afterwards. One thread. */
#ifndef FSTFS_TOP_SCREEN_H
#define FSTFS_TOP_SCREEN_H

#include "base/buffer.h"

#include <stdbool.h>

/* Returns whether standard output is a terminal with an alternate screen. */
bool screen_is_supported(void);

/* Switches to the alternate screen if necessary, and shows the lines of the text that fit. Returns
 * false if the terminal cannot be written. */
bool screen_draw(const struct buffer *text);

/* Restores the terminal. */
void screen_end(void);

/* Returns whether the screen must be redrawn because the terminal's size has changed. After ^Z it
 * restores the terminal, stops the process, and returns true once the process is continued. */
bool screen_is_stale(void);

#endif
