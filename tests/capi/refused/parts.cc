// What does not compile, and says why: run.py compiles each part by itself, whose error has the words behind it.
#include <herringbone/rabit.h>

#include <string>
#include <vector>

struct Pair {
    int first;
    void Load(rabit::Stream *from) { from->Read(&first); }
    void Save(rabit::Stream *to) const { to->Write(first); }
};

int main() {
    std::string text;
    rabit::utils::MemoryBufferStream stream(&text);
    std::vector<bool> bits(3);
    Pair pair{1};
    short number = 0;
    double fraction = 0;
#if PART == 1 // Allreduce folds char, signed char
    rabit::Allreduce<rabit::op::Sum>(&number, 1);
#elif PART == 2 // only integers have bits to fold
    rabit::Allreduce<rabit::op::BitOR>(&fraction, 1);
#elif PART == 3 // write a std::vector<char>
    stream.Write(bits);
#elif PART == 4 // write a std::vector<char>
    std::vector<std::vector<bool>> rows;
    stream.Read(&rows);
#elif PART == 5 // broadcast a std::vector<char>
    rabit::Broadcast(&bits, 0);
#elif PART == 6 // it has Load and Save: call them with the stream
    stream.Write(pair);
#elif PART == 7 // write its members, or their bytes
    struct Names {
        std::string first;
    } names;
    stream.Write(names);
#elif PART == 8 // fold it with SerializeReducer
    rabit::Reducer<std::string, nullptr> reducer;
    reducer.Allreduce(&text, 1);
#else
    pair.Save(&stream);
#endif
    return number + static_cast<int>(fraction);
}
