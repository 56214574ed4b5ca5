/* SPDX-License-Identifier: Apache-2.0 */
#include "common/say.h"

#include <errno.h>

void
complain(const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "%s: ", program_invocation_short_name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

bool
write_out(FILE *file, const struct buffer *text)
{
    return !buffer_failed(text) && fwrite(text->data, 1, text->length, file) == text->length &&
           fflush(file) == 0;
}
