#include "codec/codec.h"

#include "base/check.h"
#include "base/cpu.h"
#include "codec/cachegen.h"
#include "codec/int8.h"
#include "codec/kvquant.h"
#include "codec/lossless.h"
#include "codec/raw.h"

namespace kvcake {
namespace {

constexpr CodecRow kRows[] = {
    {Codec::kRaw, "raw", /*lossy=*/false, MakeRawCodec, nullptr},
    {Codec::kLossless, "lossless", /*lossy=*/false, MakeLosslessCodec, nullptr},
    {Codec::kInt8, "int8", /*lossy=*/true, MakeInt8Codec, nullptr},
    {Codec::kCacheGen, "cachegen", /*lossy=*/true, MakeCacheGenCodec, FitCacheGen},
    {Codec::kKvQuant3, "kvquant3", /*lossy=*/true, MakeKvQuant3Codec, FitKvQuant3},
};

}  // namespace

std::vector<CodecIsa> CodecIsas() {
  std::vector<CodecIsa> isas = {CodecIsa::kPortable};
  if (Cpu().avx2_fma) isas.push_back(CodecIsa::kAvx2);
  if (Cpu().avx512_vbmi2) isas.push_back(CodecIsa::kAvx512);
  return isas;
}

const char* CodecIsaName(CodecIsa isa) {
  switch (isa) {
    case CodecIsa::kPortable:
      return "portable";
    case CodecIsa::kAvx2:
      return "avx2";
    case CodecIsa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::span<const CodecRow> CodecRows() { return kRows; }

const CodecRow* FindCodec(Codec codec) {
  for (const CodecRow& row : kRows) {
    if (row.codec == codec) return &row;
  }
  return nullptr;
}

Result<const CodecRow*> CodecNamed(std::string_view name) {
  std::string known;
  for (const CodecRow& row : kRows) {
    if (row.name == name) return &row;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  return Fail(ErrorCode::kInvalidArgument, "there is no codec '{}', but {}", name, known);
}

Result<std::unique_ptr<LayerCodec>> MakeCodec(Codec codec, const CodecSpec& spec) {
  const CodecRow* row = FindCodec(codec);
  CHECK(row != nullptr);
  return row->make(spec, CodecIsas().back());
}

}  // namespace kvcake
