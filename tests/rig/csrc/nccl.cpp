// NCCL between processes of this machine. What a collective was called with goes into this rank's log, to be matched
// with the others'; sums of a few int64, by which ranks agree on numbers, are carried out over files.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "device.h"

using namespace rig;

struct Id {
  char text[128];
};

struct Communicator {
  int size, rank;
  std::string id;
  uint64_t calls = 0, sums = 0;
};

constexpr int type_int64 = 4, success = 0, system_error = 2;
constexpr size_t largest_sum = 512;  // elements
constexpr int timeout_ms = 60000;

static std::string folder() {
  const char* path = getenv("RIG_COLLECTIVES");
  return path ? path : "/tmp";
}

static int join(Communicator** it, int size, const Id& id, int rank) {
  *it = new Communicator{size, rank, id.text};
  communicators(+1);
  return success;
}

static size_t type_size(int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return type < 10 ? sizes[type] : 1;
}

static int call(Communicator* it, const char* name, const void* sent, void* received, size_t number, int type, int peer,
                void* stream, std::function<void()> run = {}) {
  collective_called(format("%s %s number=%zu type=%d peer=%d", it->id.c_str(), name, number, type, peer));
  Work work;
  work.kind = Work::Kind::collective;
  work.name = name;
  size_t bytes = number * type_size(type);
  if (sent) work.ranges.push_back({(uintptr_t)sent, (uintptr_t)sent + bytes, false});
  if (received) work.ranges.push_back({(uintptr_t)received, (uintptr_t)received + bytes, true});
  for (const void* buffer : {sent, (const void*)received}) work.params.push_back({(uint64_t)buffer, 8});
  work.params.push_back({number, 4});
  work.run = std::move(run);
  return enqueue(stream, std::move(work)) ? system_error : success;
}

// Each rank leaves its numbers in a file and adds up all ranks'.
static void add_up(const std::string& name, int size, int rank, const void* sent, void* received, size_t number) {
  auto path = [&](int of) { return folder() + "/" + name + "." + std::to_string(of); };
  std::ofstream(path(rank) + ".part", std::ios::binary).write((const char*)sent, number * 8);
  rename((path(rank) + ".part").c_str(), path(rank).c_str());
  std::vector<int64_t> sum(number), part(number);
  for (int of = 0; of < size; of++) {
    for (int waited = 0; access(path(of).c_str(), R_OK) != 0; waited++) {
      if (waited >= timeout_ms) return hazard("a rank waits for a sum that another one never takes part in");
      usleep(1000);
    }
    std::ifstream(path(of), std::ios::binary).read((char*)part.data(), number * 8);
    for (size_t i = 0; i < number; i++) sum[i] += part[i];
  }
  memcpy(received, sum.data(), number * 8);
}

extern "C" {

int ncclGetVersion(int* version) { return *version = 22809, success; }
const char* ncclGetErrorString(int) { return "an error of the pretended NCCL"; }
const char* ncclGetLastError(void*) { return ""; }
int ncclGetUniqueId(Id* id) { return snprintf(id->text, sizeof id->text, "comm-%d-%d", getpid(), rand()), success; }
int ncclCommInitRank(Communicator** it, int size, Id id, int rank) { return join(it, size, id, rank); }
int ncclCommInitRankConfig(Communicator** it, int size, Id id, int rank, void*) { return join(it, size, id, rank); }
int ncclCommInitRankScalable(Communicator** it, int size, int rank, int, Id* ids, void*) {
  return join(it, size, ids[0], rank);
}
int ncclCommSplit(Communicator* parent, int color, int key, Communicator** it, void*) {
  Id id;
  snprintf(id.text, sizeof id.text, "%s-%d", parent->id.c_str(), color);
  return join(it, parent->size, id, key);
}
int ncclCommDestroy(Communicator* it) { return communicators(-1), delete it, success; }
int ncclCommAbort(Communicator* it) { return ncclCommDestroy(it); }
int ncclCommFinalize(Communicator*) { return success; }
int ncclCommCount(Communicator* it, int* size) { return *size = it->size, success; }
int ncclCommUserRank(Communicator* it, int* rank) { return *rank = it->rank, success; }
int ncclCommGetAsyncError(Communicator*, int* error) { return *error = success, success; }
int ncclGroupStart(void) { return success; }
int ncclGroupEnd(void) { return success; }
int ncclCommRegister(Communicator*, void*, size_t, void**) { return success; }
int ncclCommDeregister(Communicator*, void*) { return success; }

int ncclAllReduce(const void* sent, void* received, size_t number, int type, int, Communicator* it, void* stream) {
  std::function<void()> run;
  if (type == type_int64 && number <= largest_sum) {
    std::string name = it->id + ".sum" + std::to_string(it->sums++);
    int size = it->size, rank = it->rank;
    run = [=] { add_up(name, size, rank, sent, received, number); };
  }
  return call(it, "all_reduce", sent, received, number, type, -1, stream, run);
}
int ncclAllGather(const void* sent, void* received, size_t number, int type, Communicator* it, void* stream) {
  return call(it, "all_gather", sent, received, number, type, -1, stream);
}
int ncclBroadcast(const void* sent, void* received, size_t number, int type, int root, Communicator* it, void* stream) {
  return call(it, "broadcast", sent, received, number, type, root, stream);
}
int ncclSend(const void* sent, size_t number, int type, int peer, Communicator* it, void* stream) {
  return call(it, "send", sent, nullptr, number, type, peer, stream);
}
int ncclRecv(void* received, size_t number, int type, int peer, Communicator* it, void* stream) {
  return call(it, "receive", nullptr, received, number, type, peer, stream);
}
int ncclAlltoAll(const void* sent, void* received, size_t number, int type, Communicator* it, void* stream) {
  return call(it, "all_to_all", sent, received, number, type, -1, stream);
}

}  // extern "C"
