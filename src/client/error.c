/* SPDX-License-Identifier: Apache-2.0 */
#include "client/error.h"

#include "base/thread.h"
#include "fstfs.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 1024 };

/* The text of a thread's last failure, allocated at the thread's first failure and freed when the
 * thread ends: it is too large for a THREAD_LOCAL variable. */
static pthread_key_t text_key;
static atomic_bool has_key;

/* A static string that replaces the text: "" before the first failure, or the message if memory is
 * exhausted. NULL: the text is valid. */
static THREAD_LOCAL const char *static_text = "";

static void __attribute__((constructor)) text_key_create(void)
{
    has_key = pthread_key_create(&text_key, free) == 0;
}

/* Called when the library is unloaded or the process exits. Other threads may still call fail(). */
static void __attribute__((destructor)) text_key_delete(void)
{
    /* Another owner may create a key with the same index after the deletion. */
    if (atomic_exchange(&has_key, false))
        pthread_key_delete(text_key);
}

/* NULL: out of memory. */
static char *
text_of_thread(void)
{
    char *text = has_key ? pthread_getspecific(text_key) : NULL;

    if (text || !has_key)
        return text;
    text = malloc(TEXT_BYTES);
    if (text && pthread_setspecific(text_key, text) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

errint_t
fail(errint_t error, const char *format, ...)
{
    char *text = text_of_thread();
    va_list arguments;

    static_text = text ? NULL : strerror(-error);
    if (!text)
        return error;
    va_start(arguments, format);
    vsnprintf(text, TEXT_BYTES, format, arguments);
    va_end(arguments);
    return error;
}

errint_t
fail_no_memory(void)
{
    static_text = "out of memory";
    return -ENOMEM;
}

errint_t
check_reserved(const char *structure, const uint64_t *reserved, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (reserved[i])
            return fail(-EINVAL,
                        "struct %s: reserved[%zu] is %#llx, expected 0: the program needs a newer "
                        "libfstfs than " FSTFS_VERSION ", or did not clear the structure",
                        structure, i, (unsigned long long)reserved[i]);
    return 0;
}

const char *
fstfs_error(void)
{
    const char *text = static_text;

    if (!text && has_key)
        text = pthread_getspecific(text_key);
    return text ? text : "";
}
