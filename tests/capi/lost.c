/* Three ranks, of which rank 1 is killed in the middle: the others get its number. */
#include "check.h"

#include <signal.h>

int main(void) {
    herringbone_communicator group;
    uint32_t rank, lost[3] = {7, 7, 7};
    float value = 1;
    size_t count = 7;
    OK(herringbone_init(&group));
    OK(herringbone_rank(group, &rank));
    OK(herringbone_all_reduce(group, &value, &value, 1, HERRINGBONE_F32, HERRINGBONE_SUM));
    CHECK(value == 3);
    OK(herringbone_lost_ranks(lost, 3, &count));
    CHECK(count == 0 && lost[0] == 7);
    /* As it comes back from this, the others have the sum. It may die before they come back, too. */
    int barrier = herringbone_barrier(group);
    if (rank == 1) {
        raise(SIGKILL);
    }
    if (barrier == HERRINGBONE_OK) {
        barrier = herringbone_all_reduce(group, &value, &value, 1, HERRINGBONE_F32, HERRINGBONE_SUM);
    }
    FAILS(HERRINGBONE_ERROR_PEER_LOST, "rank 1", barrier);
    OK(herringbone_lost_ranks(NULL, 0, &count));
    CHECK(count == 1);
    OK(herringbone_lost_ranks(lost, 3, &count));
    CHECK(count == 1 && lost[0] == 1 && lost[1] == 7);
    /* It stays lost, also for what runs in the background, and a failure of another kind names no rank. */
    herringbone_work work;
    int code = herringbone_barrier_async(group, &work);
    CHECK((code == HERRINGBONE_OK ? herringbone_wait(work) : code) == HERRINGBONE_ERROR_PEER_LOST);
    FAILS(HERRINGBONE_ERROR_HANDLE, "", herringbone_wait(0));
    OK(herringbone_lost_ranks(lost, 3, &count));
    CHECK(count == 0);
    (void)herringbone_finalize(group);
    FAILS(HERRINGBONE_ERROR_HANDLE, "finalized", herringbone_barrier(group));
    return 0;
}
