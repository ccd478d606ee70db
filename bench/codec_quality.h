// bench quality's part about codecs.
#pragma once

#include "bench/benches.h"

namespace kvcake::bench {

// Windows of the held-out text: the cache of the first kv_context tokens goes through each codec
// of options.kv_codecs, the next kv_scored are scored on what comes out, and compared with what
// they score on the cache itself; other arithmetic, where this CPU has any, is the noise floor.
// Then questions about documents whose whole cache went through each codec. Fails when a codec that
// loses nothing changed a logit.
Status RunCodecQuality(const QualityOptions& options);

}  // namespace kvcake::bench
