/* SPDX-License-Identifier: Apache-2.0 */
#include "base/timestamp.h"

#define SECOND_NS 1000000000ll
/* Two ticks of the kernel's coarse clock, which are at most 10 ms apart (CONFIG_HZ=100). */
#define TICK_NS 20000000ll
/* FAT has the coarsest time stamps, even numbers of seconds. A server may export it. */
#define REMOTE_SECONDS_NS (2 * SECOND_NS)
/* The assumed maximum difference between the clocks of a server and this machine. */
#define CLOCK_SKEW_NS (10 * SECOND_NS)

/* Nanoseconds since `then`, limited to about 68 years. */
static int64_t
age_ns(const struct timespec *then)
{
    struct timespec now;
    int64_t seconds;

    clock_gettime(CLOCK_REALTIME, &now);
    seconds = (int64_t)now.tv_sec - (int64_t)then->tv_sec;
    if (seconds > INT32_MAX)
        seconds = INT32_MAX;
    if (seconds < INT32_MIN)
        seconds = INT32_MIN;
    return seconds * SECOND_NS + (now.tv_nsec - then->tv_nsec);
}

static int64_t
granularity_ns(const struct timespec *changed, bool local)
{
    int64_t granularity = SECOND_NS;

    if (changed->tv_nsec == 0)
        return local ? SECOND_NS : REMOTE_SECONDS_NS;
    while (changed->tv_nsec % granularity)
        granularity /= 10;
    return granularity;
}

uint64_t
timestamp_settle_ns(const struct timespec *changed, bool local)
{
    int64_t age = age_ns(changed), margin = granularity_ns(changed, local) + TICK_NS;

    if (local && age >= 0)
        return age < margin ? (uint64_t)(margin - age) : 0;
    /* The time is of another clock, or this clock was set back, so that the age is not reliable.
     * Once the file has been unchanged for the margin, every later change gets another time. */
    return age > -CLOCK_SKEW_NS && age < CLOCK_SKEW_NS ? (uint64_t)margin : 0;
}

bool
timestamp_is_recent(const struct timespec *changed, unsigned seconds)
{
    int64_t age = age_ns(changed);

    return age < seconds * SECOND_NS;
}
