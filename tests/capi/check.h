/* Checks of the test programs: one that fails says where and what was found, and ends the process. */
#ifndef CHECK_H
#define CHECK_H

#include <herringbone.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: not so: %s; the last error is \"%s\"\n", __FILE__, __LINE__, #condition, \
                herringbone_last_error()); \
            exit(1); \
        } \
    } while (0)

/* The call succeeds. */
#define OK(call) CHECK((call) == HERRINGBONE_OK)

/* The call fails with this code, and a text that has these words. */
#define FAILS(code, words, call) \
    do { \
        int returned = (call); \
        if (returned != (code) || strstr(herringbone_last_error(), (words)) == NULL) { \
            const char *returned_name = herringbone_error_name(returned); \
            fprintf(stderr, "%s:%d: %s returned %s, with \"%s\"; expected %s and \"%s\"\n", __FILE__, __LINE__, #call, \
                returned_name != NULL ? returned_name : "no code", herringbone_last_error(), #code, (words)); \
            exit(1); \
        } \
    } while (0)

#endif
