// Stands in for CUDA's cuda_runtime.h under g++: what nvcc gives every kernel without an include.
#pragma once

#include "emulation/atomics.h"
#include "emulation/interface.h"
#include "emulation/math.h"
#include "emulation/memory.h"
#include "emulation/synchronisation.h"
#include "emulation/vector_types.h"
