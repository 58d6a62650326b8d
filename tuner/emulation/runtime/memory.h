// Guarded "device" memory: each buffer lies between pages that cannot be touched, filled with 0xFF (NaN) at first.
//
// What a buffer leaves of its first and last page holds a pattern of its own, which is looked at after each launch. It
// is a NaN in half and in float, so that reading it shows, and differs from buffer to buffer, so that copying it shows.
#pragma once

#include <string>
#include <vector>

#include "state.h"

namespace emulation {

struct Buffer {
    char* mapping;
    size_t mapping_bytes;
    char* data;
    size_t bytes, element_bytes;
    std::string name;
    bool initialised;  // as a whole, by the host
    uint16_t edge_pattern;
    std::vector<ShadowCell> shadow;

    // "element 10 (byte 20) of buffer C (10 elements)"
    std::string describe(uintptr_t address) const;
};

// The buffer that `address` lies in or beside (in its guard pages), or null.
Buffer* buffer_near(uintptr_t address);
// Calls `visit` for every buffer.
void for_each_buffer(void (*visit)(Buffer&));
// Repeats `pattern` over [begin, end), whose even addresses take the low byte.
void fill_edge(char* begin, char* end, uint16_t pattern);
// The first byte in [begin, end) that does not hold the pattern any more, or null.
char* first_touched(char* begin, char* end, uint16_t pattern);
// Reports bytes beside a buffer that a kernel has written within the pages that had to be mapped.
void check_buffer_edges();

}  // namespace emulation
