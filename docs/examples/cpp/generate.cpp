// Streams an answer: generate QUESTION [ADDRESS [TIMEOUT_SECONDS [MAX_TOKENS]]]
//
// Ctrl-C cancels the request, and the mesh stops working on it at once. Of a refusal it prints the reason, and when to
// ask again. A key is read from TERCET_API_KEY.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "errors.pb.h"
#include "tercet/v1/inference.grpc.pb.h"

namespace {

using tercet::v1::GenerateEvent;
using tercet::v1::GenerateRequest;
using tercet::v1::Inference;

// Cancels a call at Ctrl-C, for as long as it lives. A handler of signals may call almost nothing, so a thread waits.
class CancelAtInterrupt {
 public:
  explicit CancelAtInterrupt(grpc::ClientContext& context) {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    // Before gRPC makes its threads, which inherit it.
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    waiting_ = std::thread([this, &context] {
      int number = 0;
      sigwait(&signals_, &number);
      context.TryCancel();
    });
  }

  ~CancelAtInterrupt() {
    pthread_kill(waiting_.native_handle(), SIGINT);
    waiting_.join();
  }

 private:
  sigset_t signals_;
  std::thread waiting_;
};

// What the mesh says of an error besides its code: a stable reason, and when another attempt may succeed.
void explain(const grpc::Status& status) {
  std::string reason = "gRPC " + std::to_string(status.error_code());
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  google::rpc::RetryInfo retry;
  details.ParseFromString(status.error_details());
  for (const auto& detail : details.details()) {
    if (detail.UnpackTo(&info)) reason = info.reason();
    detail.UnpackTo(&retry);
  }
  std::cerr << reason << ": " << status.error_message() << '\n';
  for (const auto& [key, value] : info.metadata()) std::cerr << "  " << key << " = " << value << '\n';
  if (retry.has_retry_delay()) {
    const auto& delay = retry.retry_delay();
    std::cerr << "ask again in " << static_cast<double>(delay.seconds()) + delay.nanos() / 1e9 << " s\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: generate QUESTION [ADDRESS [TIMEOUT_SECONDS [MAX_TOKENS]]]\n";
    return 2;
  }
  GenerateRequest request;
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content(argv[1]);
  request.mutable_sampling()->set_temperature(0);
  if (argc > 4) request.mutable_stop()->set_max_tokens(static_cast<unsigned>(std::stoul(argv[4])));

  grpc::ClientContext context;
  if (argc > 3) {
    // The mesh knows the deadline, too: what cannot come in time it refuses at once.
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(std::lround(1000 * std::stod(argv[3]))));
  }
  if (const char* key = std::getenv("TERCET_API_KEY"))
    context.AddMetadata("authorization", std::string("Bearer ") + key);
  CancelAtInterrupt interrupt(context);

  const std::string address = argc > 2 ? argv[2] : "127.0.0.1:50051";
  // grpc::SslCredentials with the CA's certificate where the gateway has TLS.
  auto stub = Inference::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  auto reader = stub->Generate(&context, request);
  // Reading one event after the other is what tells the mesh how fast this side is.
  for (GenerateEvent event; reader->Read(&event);) {
    if (event.has_delta()) {
      std::cout << event.delta().text() << std::flush;
    } else if (event.has_finished()) {
      std::cout << std::endl;
      std::cerr << FinishReason_Name(event.finished().outputs(0).reason()) << ", "
                << event.finished().usage().completion_tokens() << " tokens\n";
    }
  }
  const grpc::Status status = reader->Finish();
  if (status.ok()) return 0;
  explain(status);
  return status.error_code() == grpc::StatusCode::CANCELLED ? 130 : 1;
}
