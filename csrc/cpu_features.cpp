#include "cpu_features.h"

#include <cstring>

#if defined(WAVECORE_HAVE_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace wavecore {
namespace {

constexpr const char* kUsable = "usable";

#if defined(WAVECORE_HAVE_AMX) && !defined(WAVECORE_EMULATE_AVX512)
bool has_matrix_units() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;  // CPUID leaf 7, EDX
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  return (edx & kBf16) && (edx & kTile) && (edx & kInt8) && __builtin_cpu_supports("avx512bf16");
}

// Linux hands the tile registers out on request, once for all threads of a process. Old kernels do not know the
// request, and virtual machines and system-call filters may refuse it: a tile instruction would then be a fault.
bool request_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}
#endif

}  // namespace

const char* matrix_units() {
#if defined(WAVECORE_EMULATE_AVX512) && defined(WAVECORE_HAVE_AMX)
  return kUsable;
#elif defined(WAVECORE_HAVE_AMX)
  __builtin_cpu_init();
  if (!has_matrix_units()) return "none in this processor";
  return request_tiles() ? kUsable : "refused by the system";
#else
  return "none in this build";
#endif
}

std::vector<std::string> supported_instruction_sets() {
  std::vector<std::string> names{"portable"};
#if defined(WAVECORE_EMULATE_AVX512)
  names.insert(names.end(), {"avx2", "avx512", "avx512_vnni"});
#elif defined(WAVECORE_HAVE_X86)
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
  if (names.back() == "avx512_vnni" && !std::strcmp(matrix_units(), kUsable)) names.emplace_back("amx");
  return names;
}

}  // namespace wavecore
