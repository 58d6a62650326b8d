// Loads and stores with a cache hint. The hint has no meaning here, but the L2 ones (cg, cv) are what other blocks are
// waited for with, so they count as visible to other blocks for the race checker and give other threads a turn.
#pragma once

#include "interface.h"

template <class T>
inline T __ldg(const T* address) {
    return *address;
}
template <class T>
inline T __ldca(const T* address) {
    return *address;
}
template <class T>
inline T __ldcs(const T* address) {
    return *address;
}
template <class T>
inline T __ldlu(const T* address) {
    return *address;
}
template <class T>
inline void __stcs(T* address, T value) {
    *address = value;
}
template <class T>
inline void __stwb(T* address, T value) {
    *address = value;
}

template <class T>
MNT_UNCHECKED inline T __ldcg(const T* address, MNT_SITE) {
    mnt_emulation_poll();
    mnt_emulation_cached_access(address, sizeof(T), false, file_, line_);
    asm volatile("" ::: "memory");  // read memory again at each turn of a spin loop
    return *address;
}
template <class T>
MNT_UNCHECKED inline void __stcg(T* address, T value, MNT_SITE) {
    mnt_emulation_cached_access(address, sizeof(T), true, file_, line_);
    *address = value;
}
template <class T>
MNT_UNCHECKED inline T __ldcv(const T* address, MNT_SITE) {
    return __ldcg(address, file_, line_);
}
template <class T>
MNT_UNCHECKED inline void __stwt(T* address, T value, MNT_SITE) {
    __stcg(address, value, file_, line_);
}
