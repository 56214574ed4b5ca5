/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A text that fills the terminal at standard output, and leaves it as it was.
 */
#ifndef FSTFS_TOP_SCREEN_H
#define FSTFS_TOP_SCREEN_H

#include "base/buffer.h"

#include <stdbool.h>

/* Whether standard output is a terminal that can. */
bool screen_can(void);

/* Takes the terminal if it has it not, and shows what fits of the text's lines. False:
 * it cannot be written. */
bool screen_draw(const struct buffer *text);

/* Gives the terminal back, if it has it. */
void screen_end(void);

/* Whether the terminal has another size than when it was drawn. Where ^Z was pressed
 * it gives it back and stops; the answer, true, comes when the program goes on. */
bool screen_is_stale(void);

#endif
