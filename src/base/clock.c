/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

uint64_t
monotonic_ms(void)
{
    return monotonic_ns() / 1000000;
}
