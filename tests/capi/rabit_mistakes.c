/* Whatever a program of RABIT's interface does wrong is a value or a text, and never the end of the process. One rank of a job. */
#define _DEFAULT_SOURCE
#include "check.h"

#include <rabit/c_api.h>

#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

static float values[2] = {1, 2};
static char *model, *local;
static rbt_ulong length, local_length;

/* The last failure of this thread has these words. */
#define SAYS(words) CHECK(strstr(herringbone_last_error(), (words)) != NULL)

/* A function that returns a value returns this one, with a text. */
#define RETURNS(value, words, call) \
    do { \
        CHECK((call) == (value)); \
        SAYS(words); \
    } while (0)

/* A function that returns nothing fails with a text. After that all calls fail, and the process can join again. */
#define ENDS(words, call) \
    do { \
        call; \
        SAYS(words); \
        RabitAllreduce(values, 2, rabit_float, rabit_sum, NULL, NULL); \
        SAYS("a call before this one failed"); \
        SAYS(words); \
        RETURNS(-1, "a call before this one failed", RabitLoadCheckPoint(&model, &length, NULL, NULL)); \
        CHECK(RabitGetRank() == 0); \
        RETURNS(false, "a call before this one failed", RabitFinalize()); \
        CHECK(RabitInit(0, NULL)); \
    } while (0)

static void without_a_session(void) {
    char name[8] = "", *arguments[] = {"program", NULL, "rabit_global_replica=0"};
    rbt_ulong name_length = 77;
    RETURNS(-1, "call init first", RabitGetRank());
    RETURNS(-1, "call init first", RabitGetWorldSize());
    RETURNS(-1, "call init first", RabitGetRingPrevRank());
    RETURNS(-1, "call init first", RabitIsDistributed());
    RETURNS(-1, "call init first", RabitVersionNumber());
    RETURNS(-1, "call init first", RabitLoadCheckPoint(&model, &length, NULL, NULL));
    RETURNS(false, "call init first", RabitFinalize());
    RabitGetProcessorName(name, &name_length, sizeof name);
    CHECK(name_length == 77 && name[0] == '\0');
    RabitAllreduce(values, 2, rabit_float, rabit_sum, NULL, NULL);
    SAYS("call init first");
    RabitBroadcast(values, sizeof values, 0);
    RabitAllgather(values, 2, 0, 2, 2, rabit_float);
    RabitCheckPoint("model", 5, NULL, 0);
    RabitTrackerPrint("nobody");
    RETURNS(false, "argc is -1", RabitInit(-1, NULL));
    RETURNS(false, "argv is null", RabitInit(1, NULL));
    RETURNS(false, "rabit_global_replica", RabitInit(3, arguments));
    CHECK(RabitLinkTag() == 0);
}

static void arguments_that_cannot_be_used(void) {
    const size_t most = SIZE_MAX;
    ENDS("is null", RabitAllreduce(NULL, 1, rabit_float, rabit_sum, NULL, NULL));
    ENDS("is no element type", RabitAllreduce(values, 1, 10, rabit_sum, NULL, NULL));
    ENDS("is no element type", RabitAllreduce(values, 1, -1, rabit_sum, NULL, NULL));
    ENDS("is no operation", RabitAllreduce(values, 1, rabit_float, 4, NULL, NULL));
    ENDS("is no operation", RabitAllreduce(values, 1, rabit_float, -1, NULL, NULL));
    ENDS("bits of f32", RabitAllreduce(values, 1, rabit_float, rabit_bitwise_or, NULL, NULL));
    ENDS("no buffer is as long", RabitAllreduce(values, most, rabit_float, rabit_sum, NULL, NULL));
    ENDS("no buffer is as long", RabitAllreduce(values, most / 8 + 1, rabit_double, rabit_sum, NULL, NULL));
    ENDS("is null", RabitBroadcast(NULL, 1, 0));
    ENDS("root is 1", RabitBroadcast(values, 1, 1));
    ENDS("root is -1", RabitBroadcast(values, 1, -1));
    ENDS("no buffer is as long", RabitBroadcast(values, most, 0));
    ENDS("is null", RabitAllgather(NULL, 2, 0, 2, 2, rabit_float));
    ENDS("is no element type", RabitAllgather(values, 2, 0, 2, 2, 11));
    ENDS("is not inside", RabitAllgather(values, 2, 1, 2, 2, rabit_float));
    ENDS("is not inside", RabitAllgather(values, 2, most / 4, 1, 2, rabit_float));
    ENDS("no buffer is as long", RabitAllgather(values, most, 0, 2, 2, rabit_float));
    ENDS("make up the buffer", RabitAllgather(values, 2, 0, 1, 1, rabit_float));
    ENDS("pass its length", RabitAllgather(values, 2, 0, 2, 1, rabit_float));
    ENDS("global_model is null", RabitCheckPoint(NULL, 1, NULL, 0));
    ENDS("no array has", RabitCheckPoint("model", most, NULL, 0));
}

static void places_that_are_missing(void) {
    char name[256];
    rbt_ulong name_length = 7;
    RETURNS(-1, "is null", RabitLoadCheckPoint(NULL, &length, NULL, NULL));
    RETURNS(-1, "is null", RabitLoadCheckPoint(&model, NULL, NULL, NULL));
    RETURNS(false, "called before", RabitInit(0, NULL));
    RabitTrackerPrint(NULL);
    SAYS("msg is null");
    RabitGetProcessorName(NULL, &name_length, 8);
    SAYS("out_name is null");
    RabitGetProcessorName(name, NULL, 8);
    SAYS("out_len is null");
    RabitGetProcessorName(name, &name_length, 0);
    SAYS("room for 0 bytes");
    CHECK(name_length == 7);
    RabitGetProcessorName(name, &name_length, 2);
    CHECK(name_length == 1 && name[1] == '\0');
    RabitGetProcessorName(name, &name_length, sizeof name);
    CHECK(name_length == strlen(name) && name_length > 0);
    /* None of these has ended the session, and nothing is needed where there is nothing. */
    RabitAllreduce(NULL, 0, rabit_float, rabit_sum, NULL, NULL);
    RabitBroadcast(NULL, 0, 0);
    RabitAllgather(NULL, 0, 0, 0, 0, rabit_float);
    RabitAllreduce(values, 2, rabit_float, rabit_max, NULL, NULL);
    CHECK(values[0] == 1 && values[1] == 2);
}

/* A function that prepares the input and makes a call takes the outer call's place. */
static void call_again(void *count) {
    RabitAllreduce(values, *(size_t *)count, rabit_float, rabit_sum, NULL, NULL);
}

static void prepare(void *count) {
    ++*(int *)count;
    CHECK(RabitGetRank() == 0 && RabitVersionNumber() == 0);
}

static void checkpoints(void) {
    size_t nested = 2;
    int prepared = 0;
    model = local = "untouched";
    length = local_length = 7;
    CHECK(RabitLoadCheckPoint(&model, &length, &local, &local_length) == 0);
    CHECK(strcmp(model, "untouched") == 0 && local == model && length == 7 && local_length == 7);
    RabitAllreduce(values, 2, rabit_float, rabit_sum, prepare, &prepared);
    CHECK(prepared == 1);
    RabitCheckPoint("one", 3, "mine", 4);
    CHECK(RabitLoadCheckPoint(&model, &length, &local, &local_length) == 1);
    CHECK(length == 3 && memcmp(model, "one", 3) == 0 && local_length == 4 && memcmp(local, "mine", 4) == 0);
    /* A local model that is null or empty is none. */
    RabitCheckPoint("two", 3, "mine", 0);
    CHECK(memcmp(model, "one", 3) == 0 && memcmp(local, "mine", 4) == 0);
    CHECK(RabitLoadCheckPoint(&model, &length, &local, &local_length) == 2);
    CHECK(length == 3 && memcmp(model, "two", 3) == 0 && local == NULL && local_length == 0);
    RabitCheckPoint("", 0, NULL, 9);
    CHECK(RabitLoadCheckPoint(&model, &length, NULL, NULL) == 3 && length == 0);
    RabitAllreduce(values, 2, rabit_float, rabit_sum, NULL, NULL);
    RETURNS(-1, "call load_checkpoint() once", RabitLoadCheckPoint(&model, &length, NULL, NULL));
    CHECK(RabitVersionNumber() == 3);
    ENDS("must make no call of its own", RabitAllreduce(values, 2, rabit_float, rabit_sum, call_again, &nested));
}

static void forked_child(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(RabitGetRank() == -1 && RabitVersionNumber() == -1);
        SAYS("forked");
        RabitAllreduce(values, 2, rabit_float, rabit_sum, NULL, NULL);
        SAYS("forked");
        _exit(RabitFinalize() ? 1 : 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    without_a_session();
    CHECK(RabitInit(0, NULL));
    CHECK(RabitGetRank() == 0 && RabitGetWorldSize() == 1 && RabitGetRingPrevRank() == 0 && RabitIsDistributed() == 0);
    arguments_that_cannot_be_used();
    places_that_are_missing();
    forked_child();
    checkpoints();
    RabitTrackerPrint("a line\n");
    CHECK(RabitFinalize());
    RETURNS(-1, "call init first", RabitGetRank());
    return 0;
}
