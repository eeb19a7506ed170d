// SwiGLU's activation (Shazeer 2020, arXiv:2002.05202).
#pragma once

#include "simd.h"

namespace baton {

// silu(gate) * up of values that are bf16 already; silu is rounded before the product, as it is where it is stored.
inline Floats silu_and_mul(Floats gate, Floats up) {
  return round_to_bf16(gate / (set(1.0f) + exp(zeros() - gate))) * up;
}

}  // namespace baton
