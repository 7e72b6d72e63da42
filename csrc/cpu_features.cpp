#include "cpu_features.h"

namespace wavecore {

std::vector<std::string> supported_instruction_sets() {
  std::vector<std::string> names{"portable"};
#if defined(WAVECORE_HAVE_X86)
#if defined(WAVECORE_EMULATE_AVX512)
  return {"portable", "avx2", "avx512", "avx512_vnni"};
#endif
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    names.emplace_back("avx2");
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      names.emplace_back("avx512");
      if (__builtin_cpu_supports("avx512vnni")) names.emplace_back("avx512_vnni");
    }
  }
#endif
  return names;
}

}  // namespace wavecore
