// The kernels for AMX: attention on bfloat16, with float and int8 scores, and the int8 linear layer. The other ones
// have no products of matrices, or none that PyTorch's library does not do: they are those for AVX-512 VNNI.
#define WAVECORE_ISA amx
#include "simd/avx512.h"
#include <amx_tiles.h>

#include "kernels/amx_attention.h"
#include "kernels/amx_attention_int8.h"
#include "kernels/amx_int8_linear.h"

namespace wavecore {
namespace {

Kernels with_tiles(Kernels table) {
  table.name = "amx";
  table.most_queries = amx::kMostTileQueries;
  table.paged_attention = amx::paged_attention_tiles;
  table.paged_attention_scratch = amx::paged_attention_tiles_scratch;
  table.paged_attention_int8 = amx::paged_attention_int8_tiles;
  table.paged_attention_int8_scratch = amx::paged_attention_int8_tiles_scratch;
  table.int8_linear = amx::int8_linear_tiles;
  table.int8_linear_items = amx::int8_linear_tiles_items;
  table.int8_linear_scratch = amx::int8_linear_tiles_scratch;
  return table;
}

}  // namespace

const Kernels& amx_kernels() {
  static const Kernels table = with_tiles(avx512_vnni_kernels());
  return table;
}

}  // namespace wavecore
