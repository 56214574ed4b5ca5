/* SPDX-License-Identifier: Apache-2.0 */
/* Credentials of callers: parsing them from /proc, and permission checks by file mode. */
#include "fuse/credentials.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct caller caller = {.uid = 1000, .gid = 100, .pid = 1};

#define STATUS(uids, gids, groups)                                                                 \
    "Name:\tpython\nUmask:\t0022\nPid:\t7\nUid:\t" uids "\nGid:\t" gids "\nFDSize:\t64\n" groups   \
    "NStgid:\t7\nCapEff:\t0000000000000000\n"

static struct credentials
credentials_of_text(const char *status)
{
    struct credentials credentials;

    ck_assert_int_eq(credentials_from_status(status, &caller, &credentials), 0);
    ck_assert_uint_eq(credentials.uid, caller.uid);
    ck_assert_uint_eq(credentials.gid, caller.gid);
    ck_assert(!credentials.overrides);
    return credentials;
}

START_TEST(test_groups)
{
    struct credentials c = credentials_of_text(
        STATUS("1000\t1000\t1000\t1000", "100\t100\t100\t100", "Groups:\t4 27 4294967294 \n"));

    ck_assert(c.groups_known);
    ck_assert_uint_eq(c.group_count, 3);
    ck_assert_uint_eq(c.groups[0], 4);
    ck_assert_uint_eq(c.groups[1], 27);
    ck_assert_uint_eq(c.groups[2], 4294967294u);
    credentials_free(&c);
}
END_TEST

/* The next line's numbers are not groups. */
START_TEST(test_no_groups)
{
    struct credentials c = credentials_of_text(
        STATUS("1000\t1000\t1000\t1000", "100\t100\t100\t100", "Groups:\t \n5 6\n"));

    ck_assert(c.groups_known);
    ck_assert_uint_eq(c.group_count, 0);
    credentials_free(&c);
}
END_TEST

START_TEST(test_many_groups)
{
    enum { COUNT = 65536 };
    char *text = malloc(12 * COUNT + 512), *at = text;
    struct credentials c;

    at += sprintf(at, "Uid:\t0\t0\t0\t0\n"); /* at the start of the text, with no newline before it:
                                                not a field */
    at += sprintf(at, "\nUid:\t1000\t0\t0\t0\nGid:\t100\t0\t0\t0\nGroups:\t");
    for (unsigned i = 0; i < COUNT + 5; i++)
        at += sprintf(at, "%u ", i);
    sprintf(at, "\n");
    c = credentials_of_text(text);
    ck_assert(c.groups_known);
    ck_assert_uint_eq(c.group_count, COUNT);
    ck_assert_uint_eq(c.groups[COUNT - 1], COUNT - 1);
    credentials_free(&c);
    free(text);
}
END_TEST

/* Field 9 of /proc/PID/stat has the flag; the name before it can contain anything. */
START_TEST(test_io_workers)
{
    ck_assert(credentials_is_io_worker("7 (iou-wrk-5) S 1 5 5 0 -1 4194384 0 0"));
    ck_assert(!credentials_is_io_worker("7 (python) S 1 5 5 0 -1 4194304 0 0"));
    ck_assert(!credentials_is_io_worker("7 (x) S 1 5 5 0 -1 16) S 1 5 5 0 -1 4194304 0 0"));
    ck_assert(!credentials_is_io_worker("7 (cut off) S 1"));
    ck_assert(!credentials_is_io_worker(""));
    ck_assert(!credentials_is_io_worker(NULL));
}
END_TEST

/* The groups of a thread that acts for another user are not those of that user. */
START_TEST(test_groups_of_another)
{
    static const char *const others[] = {
        STATUS("0\t0\t0\t0", "100\t100\t100\t100", "Groups:\t4 27 \n"),
        STATUS("1000\t1000\t1000\t1000", "0\t0\t0\t0", "Groups:\t4 27 \n"),
        /* effective or saved only */
        STATUS("0\t1000\t1000\t0", "100\t100\t100\t100", "Groups:\t4 27 \n"),
        STATUS("1000\t1000\t1000\t1000", "0\t100\t100\t0", "Groups:\t4 27 \n"),
        STATUS("10000\t10000\t10000\t10000", "100\t100\t100\t100", "Groups:\t4 27 \n"),
        STATUS("1000\t1000\t1000\t1000", "100\t100\t100\t100", ""),
        STATUS("", "", "Groups:\t4 27 \n"),
        "",
    };

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct credentials c = credentials_of_text(others[i]);

        ck_assert_msg(!c.groups_known && c.group_count == 0, "text %zu", i);
        credentials_free(&c);
    }
}
END_TEST

/* access(2) checks the real user ID, open(2) the file system user ID. */
START_TEST(test_groups_of_set_uid_program)
{
    static const char *const same[] = {
        STATUS("1000\t0\t0\t0", "100\t0\t0\t0", "Groups:\t4 \n"),
        STATUS("0\t0\t0\t1000", "0\t0\t0\t100", "Groups:\t4 \n"),
    };

    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        struct credentials c = credentials_of_text(same[i]);

        ck_assert_msg(c.groups_known && c.group_count == 1, "text %zu", i);
        credentials_free(&c);
    }
}
END_TEST

/* ---- by modes ---- */

static int
open_file_of_mode(mode_t mode)
{
    char path[] = "/tmp/fstfs-credentials-XXXXXX";
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(fchmod(fd, mode), 0);
    return fd;
}

static bool
is_permitted(mode_t mode, struct credentials credentials, int mask)
{
    int fd = open_file_of_mode(mode);
    errint_t error = credentials_permit(&credentials, fd, mask);

    close(fd);
    ck_assert(error == 0 || error == -EACCES);
    return error == 0;
}

/* As in the kernel, exactly one class applies: owner, else group, else others. */
START_TEST(test_permit)
{
    gid_t group = getegid(), groups[2] = {group + 1, group};
    struct credentials owner = {.uid = geteuid(), .gid = group + 1, .groups_known = true};
    struct credentials member = {.uid = geteuid() + 1, .gid = group, .groups_known = true};
    struct credentials supplementary = {.uid = geteuid() + 1,
                                        .gid = group + 2,
                                        .groups = groups,
                                        .group_count = 2,
                                        .groups_known = true};
    struct credentials other = {.uid = geteuid() + 1, .gid = group + 1, .groups_known = true};
    struct credentials unknown = {.uid = geteuid() + 1, .gid = group + 1};
    struct credentials root = {.uid = 0, .overrides = true};

    for (mode_t mode = 0; mode < 01000; mode++) {
        for (int mask = 0; mask < 8; mask++) {
            bool u = (mode >> 6 & (mode_t)mask) == (mode_t)mask;
            bool g = (mode >> 3 & (mode_t)mask) == (mode_t)mask;
            bool o = (mode & (mode_t)mask) == (mode_t)mask;

            if (mask & W_OK)
                continue;
            ck_assert_int_eq(is_permitted(mode, owner, mask), u);
            ck_assert_int_eq(is_permitted(mode, member, mask), g);
            ck_assert_int_eq(is_permitted(mode, supplementary, mask), g);
            ck_assert_int_eq(is_permitted(mode, other, mask), o);
            ck_assert_int_eq(is_permitted(mode, unknown, mask), g && o);
            ck_assert(is_permitted(mode, root, mask));
        }
    }
}
END_TEST

/* Files of unmapped users and groups, and callers who have the same number. */
START_TEST(test_permit_of_overflow_ids)
{
    const unsigned nobody = 65534;
    gid_t groups[] = {nobody};
    struct credentials user = {.uid = nobody, .gid = 1, .groups_known = true};
    struct credentials group = {.uid = 1, .gid = nobody, .groups_known = true};
    struct credentials supplementary = {
        .uid = 1, .gid = 1, .groups = groups, .group_count = 1, .groups_known = true};
    struct credentials both = {.uid = nobody, .gid = nobody, .groups_known = true};
    struct credentials other = {.uid = 1, .gid = 1, .groups_known = true};
    struct stat st;

    for (mode_t mode = 0; mode < 01000; mode++) {
        int fd = open_file_of_mode(mode);
        bool u = mode & 0400, g = mode & 040, o = mode & 04;

        if (fchown(fd, nobody, nobody) < 0) {
            close(fd);
            return; /* needs root */
        }
        ck_assert_int_eq(fstat(fd, &st), 0);
        ck_assert_uint_eq(st.st_mode & 0777, mode);
        ck_assert_int_eq(credentials_permit(&user, fd, R_OK), u && o ? 0 : -EACCES);
        ck_assert_int_eq(credentials_permit(&group, fd, R_OK), g && o ? 0 : -EACCES);
        ck_assert_int_eq(credentials_permit(&supplementary, fd, R_OK), g && o ? 0 : -EACCES);
        ck_assert_int_eq(credentials_permit(&both, fd, R_OK), u && g && o ? 0 : -EACCES);
        ck_assert_int_eq(credentials_permit(&other, fd, R_OK), o ? 0 : -EACCES);
        close(fd);
    }
    ck_assert(credentials_have_unknown_groups(&supplementary));
    ck_assert(!credentials_have_unknown_groups(&both));
}
END_TEST

START_TEST(test_permit_needs_a_file)
{
    struct credentials other = {.uid = 1, .gid = 1, .groups_known = true};

    ck_assert_int_eq(credentials_permit(&other, -1, R_OK), -EACCES);
}
END_TEST

static Suite *
suite(void)
{
    Suite *credentials = suite_create("credentials");
    TCase *tests = tcase_create("credentials");

    tcase_add_test(tests, test_groups);
    tcase_add_test(tests, test_no_groups);
    tcase_add_test(tests, test_many_groups);
    tcase_add_test(tests, test_io_workers);
    tcase_add_test(tests, test_groups_of_another);
    tcase_add_test(tests, test_groups_of_set_uid_program);
    tcase_add_test(tests, test_permit);
    tcase_add_test(tests, test_permit_of_overflow_ids);
    tcase_add_test(tests, test_permit_needs_a_file);
    suite_add_tcase(credentials, tests);
    return credentials;
}

#include "check_main.h"
