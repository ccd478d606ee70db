// Names for the tests of jobs.
#pragma once

#include "runahead/job.h"

namespace kvcake {

inline const char* RankMethodName(RankMethod method) {
  switch (method) {
    case RankMethod::kChain:
      return "kvr";
    case RankMethod::kTsp:
      return "tsp";
    case RankMethod::kZigzag:
      return "zigzag";
  }
  return "unknown";
}

}  // namespace kvcake
