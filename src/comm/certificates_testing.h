// Certificates of a cluster's ranks, for tests.
#pragma once

#include <string>

#include "base/authority_testing.h"
#include "base/check.h"
#include "comm/rank_tls.h"

namespace kvcake::testing_util {

// What an authority issues to a rank.
inline RankTlsFiles Issue(const Authority& authority, const std::string& name,
                          const Authority::Validity& validity = {}) {
  const Authority::Files files = authority.Issue(name, validity);
  return {files.certificate, files.key, files.ca};
}

// The same, loaded.
inline RankTls IssueLoaded(const Authority& authority, const std::string& name,
                           const Authority::Validity& validity = {}) {
  auto tls = RankTls::Load(Issue(authority, name, validity));
  CHECK(tls.has_value());
  return *tls;
}

}  // namespace kvcake::testing_util
