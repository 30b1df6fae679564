// A check of the test programs in C++: one that fails says what was found, and ends the process.
#ifndef THROWS_H
#define THROWS_H

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

// The call throws a text with these words.
template <typename Function>
void throws(const char *words, const Function &call) {
    std::string found = "nothing";
    try {
        call();
    } catch (const std::exception &error) {
        found = error.what();
        if (found.find(words) != std::string::npos) return;
    }
    std::fprintf(stderr, "%s was thrown where \"%s\" should be\n", found.c_str(), words);
    std::exit(1);
}

#endif
