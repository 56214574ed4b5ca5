/* SPDX-License-Identifier: Apache-2.0 */
/* Reads members of JSON objects that other programs wrote. `object` may be NULL or another type of
 * value; it then has no members. */
#ifndef FSTFS_COMMON_JSON_H
#define FSTFS_COMMON_JSON_H

#include <cjson/cJSON.h>

/* "" if there is no such member, or it is not a string. */
static inline const char *
json_text(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));

    return text ? text : "";
}

/* 0 if there is no such member, or it is negative or not a number. */
static inline double
json_number(const cJSON *object, const char *name)
{
    double value = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(object, name));

    return value > 0 ? value : 0; /* NaN if it is not a number */
}

#endif
