// Checkpoints while nobody is lost, and the functions under herringbone/rabit.h. A rank of a job.
#include "check.h"
#include "throws.h"

#include <herringbone/rabit.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Model : rabit::Serializable {
    std::vector<double> values;
    std::vector<std::string> names;
    int count = 0;
    bool is_broken = false;

    void Load(rabit::Stream *from) override { CHECK(from->Read(&values) && from->Read(&names) && from->Read(&count)); }
    void Save(rabit::Stream *to) const override {
        if (is_broken) throw std::runtime_error("this model cannot be saved");
        to->Write(values);
        to->Write(names);
        to->Write(count);
    }
};

// A model that is written as nothing.
struct Nothing : rabit::Serializable {
    mutable int saves = 0;
    int loads = 0;
    void Load(rabit::Stream *from) override {
        char byte;
        CHECK(!from->Read(&byte));
        loads++;
    }
    void Save(rabit::Stream *) const override { saves++; }
};

void checkpoints() {
    Model model, loaded, local;
    Nothing nothing;
    model.values = {1.5, 2.5};
    model.names = {"one", "", "three"};
    CHECK(rabit::LoadCheckPoint(&loaded, &local) == 0 && loaded.values.empty() && rabit::VersionNumber() == 0);
    local.count = rabit::GetRank();
    rabit::CheckPoint(&model, &local);
    local.count = 99;
    CHECK(rabit::LoadCheckPoint(&loaded, &local) == 1 && local.count == rabit::GetRank());
    CHECK(loaded.values == model.values && loaded.names == model.names);
    rabit::CheckPoint(&model, &nothing);
    CHECK(rabit::LoadCheckPoint(&loaded, &nothing) == 2 && nothing.saves == 1 && nothing.loads == 1);
    rabit::LazyCheckPoint(&nothing);
    CHECK(nothing.saves == 1 && rabit::VersionNumber() == 3);
    CHECK(rabit::LoadCheckPoint(&nothing) == 3 && nothing.saves == 2 && nothing.loads == 2);
    throws("has no local model", [&] { rabit::LoadCheckPoint(&nothing, &local); });
    model.is_broken = true;
    throws("cannot be saved", [&] { rabit::CheckPoint(&model); });
    rabit::LazyCheckPoint(&model);
    throws("this model cannot be saved", [&] { rabit::LoadCheckPoint(&model); });
    model.is_broken = false;
    CHECK(rabit::LoadCheckPoint(&loaded) == 4 && loaded.values == model.values);
}

// The functions under the header refuse null pointers, too.
void codes() {
    std::uint32_t number = 7;
    std::size_t length = 7;
    const char *bytes = nullptr;
    char name[4];
    int needs_input = 7;
    float value = 0;
    CHECK(herringbone_rabit_rank(nullptr) == HERRINGBONE_ERROR_ARGUMENT && herringbone_rabit_size(nullptr) != 0);
    CHECK(herringbone_rabit_version(nullptr) == HERRINGBONE_ERROR_ARGUMENT && herringbone_rabit_print(nullptr) != 0);
    CHECK(herringbone_rabit_name(nullptr, 4, &length) != 0 && herringbone_rabit_name(name, 4, nullptr) != 0);
    FAILS(HERRINGBONE_ERROR_ARGUMENT, "needs_input is null", herringbone_rabit_begin_all_reduce(&value, 1, 6, 2, 0, nullptr));
    FAILS(HERRINGBONE_ERROR_ARGUMENT, "is null", herringbone_rabit_begin_all_gather(nullptr, 1, 0, 1, 1, 0, &needs_input));
    FAILS(HERRINGBONE_ERROR_ARGUMENT, "no call", herringbone_rabit_finish());
    FAILS(HERRINGBONE_ERROR_ARGUMENT, "version is null", herringbone_rabit_load(nullptr, &bytes, &length, nullptr, nullptr));
    FAILS(HERRINGBONE_ERROR_ARGUMENT, "is null", herringbone_rabit_load(&number, nullptr, &length, nullptr, nullptr));
    FAILS(HERRINGBONE_ERROR_ARGUMENT, "save is null", herringbone_rabit_lazy_checkpoint(nullptr, nullptr));
    FAILS(HERRINGBONE_ERROR_ARGUMENT, "is null", herringbone_rabit_checkpoint(nullptr, 1, nullptr, 0));
    CHECK(number == 7 && length == 7 && needs_input == 7 && bytes == nullptr);
}

}  // namespace

int main(int argc, char *argv[]) {
    rabit::Init(argc, argv);
    checkpoints();
    codes();
    rabit::Finalize();
    return 0;
}
