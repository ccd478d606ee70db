// How long the tokens of a server's model are, in the text of a workload.
#pragma once

#include "bench/prompt_writer.h"
#include "bench/server_client.h"

namespace kvcake::bench {

// Characters a token. Asks for stretches of the workload's pieces in another text of the same
// kind, so that the server learns nothing of what it will be asked; `apart` goes into each body.
// kUnsupported: the server does not say how many tokens a prompt has.
boost::asio::awaitable<Result<double>> Calibrate(ServerClient& client, const TextSource& source,
                                                 const Workload& workload,
                                                 PromptWriter::Options options,
                                                 nlohmann::json apart);

}  // namespace kvcake::bench
