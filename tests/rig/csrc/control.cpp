// What a test may ask of the pretended GPU and tell it; `tests/rig/stand_in.py` calls these.
#include <cstring>

#include "state.h"

using namespace rig;

extern "C" {

void rig_on_hazard(void (*report)(const char*)) { state().on_hazard = report; }

uint64_t rig_count(const char* name) {
  Locked lock;
  auto found = state().counts.find(name);
  return found == state().counts.end() ? 0 : found->second;
}

int64_t rig_live(const char* name) {
  Locked lock;
  auto found = state().live.find(name);
  return found == state().live.end() ? 0 : found->second;
}

size_t rig_counts(char* buffer, size_t size) {  // lines of a name and a number; returns the bytes that all of them take
  Locked lock;
  std::string text;
  for (const auto& [name, number] : state().counts) text += name + " " + std::to_string(number) + "\n";
  if (size) snprintf(buffer, size, "%s", text.c_str());
  return text.size() + 1;
}

size_t rig_hazards(char* buffer, size_t size, int clear) {  // lines; as `rig_counts`
  Locked lock;
  std::string text;
  for (const auto& sentence : state().hazards) text += sentence + "\n";
  if (size) snprintf(buffer, size, "%s", text.c_str());
  if (clear) state().hazards.clear();
  return text.size() + 1;
}

int rig_set(const char* name, int64_t value) {
  Locked lock;
  State& it = state();
  std::string setting = name;
  if (setting == "schedule") it.schedule = (Schedule)value;
  else if (setting == "seed") it.random.seed(value);
  else if (setting == "checking") it.checking = value;
  else if (setting == "serving") it.serving = value, it.has_launching_thread = false;
  else if (setting == "device_error") it.device_error = value;
  else if (setting == "allocations_until_failure") it.allocations_until_failure = value;
  else if (setting == "total_mib") it.total_bytes = (size_t)value << 20;
  else return 1;
  return 0;
}

int rig_record(const char* path) {  // null ends it
  Locked lock;
  State& it = state();
  if (it.recording) fclose(it.recording);
  it.recording = path ? fopen(path, "w") : nullptr;
  return path && !it.recording;
}

size_t rig_mappings(char* buffer, size_t size) {  // lines of an address, its bytes, and 1 where copies may write
  Locked lock;
  std::string text;
  for (const auto& [address, shared] : state().mapped) {
    const Allocation& it = state().allocations[address];
    text += format("%zu %zu %d\n", (size_t)address, it.bytes, it.writes);
  }
  if (size) snprintf(buffer, size, "%s", text.c_str());
  return text.size() + 1;
}

void rig_unmodelled(const char* function) { unmodelled(function); }

}  // extern "C"
