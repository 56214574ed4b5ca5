/* SPDX-License-Identifier: Apache-2.0 */
/* The main() of a unit test program: include it last, after a function
 * `static Suite *suite(void)`. Prints TAP. */
#ifndef FSTFS_TESTS_CHECK_MAIN_H
#define FSTFS_TESTS_CHECK_MAIN_H

#include "expect.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

int
main(void)
{
    SRunner *runner = srunner_create(suite());
    int failed;

    srunner_set_tap(runner, "-");
    srunner_run_all(runner, CK_SILENT);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (expect_failure) {
        fprintf(stderr, "no test reported %s\n", expect_failure);
        failed++;
    }
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
