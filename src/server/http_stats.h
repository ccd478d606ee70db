// What an HttpServer counts of its connections.
#pragma once

#include "server/connection_table.h"

namespace kvcake {

struct HttpStats {
  ConnectionTable::Stats clients = {};
  ConnectionTable::Stats admin = {};  // at the listener for those who run the server
  uint64_t handshakes_failed = 0;     // of TLS
};

}  // namespace kvcake
