// What went wrong in a launch. A report reads "kind: what [kernel block (x,y,z) thread (x,y,z)]".
#pragma once

#include <stdint.h>

#include <string>

namespace emulation {

enum class Severity { goes_on, ends_launch };

// Adds a report about the running fiber, if there is one. Repetitions are dropped, and a flood of one kind is cut off,
// so that it cannot hide another.
void report(const char* kind, Severity severity, const char* format, ...) __attribute__((format(printf, 3, 4)));

bool any_reports();
void clear_reports();
char* take_reports();

// "gemm.cu:42": a source position without the folders.
std::string position(const char* file, int line);
// "@0x1234", which the Python side replaces by file and line; empty where the address is not the kernel's.
std::string position(uintptr_t program_counter);

}  // namespace emulation
