// GPUs, contexts, and what all processes together have on a GPU: see device.h.
//
// What a process has there for itself is the length of a memfd, its books, which have no content; memory that processes
// share is a memfd, too. So any process can add up what is used, and the death of a process gives its part back.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "state.h"

namespace rig {

constexpr size_t context_bytes = 600 << 20;
static thread_local int device_of_thread = -1;

int num_devices() { return state().devices.size(); }

std::string uuid_of(int device) {
  std::string bytes;
  for (int i = 0; i < 16; i++) bytes += (char)i;
  bytes[15] += device;
  return bytes;
}

// CUDA's files, which tests/rig/build.py puts beside this library: a process that has them open may use a GPU.
static void open_file(const std::string& name) {
  Dl_info found;
  if (!dladdr((void*)&open_file, &found)) return;
  std::string folder = found.dli_fname;
  folder.resize(folder.rfind('/') + 1);
  open((folder + "dev/" + name).c_str(), O_RDWR | O_CLOEXEC);
}

int initialize() {
  Locked lock;
  State& it = state();
  if (it.devices.empty()) return no_device;
  if (it.initialized_by == getpid()) return ok;
  if (it.initialized_by) {
    hazard("CUDA was initialized before this process was forked, and does not work in it");
    return not_initialized;
  }
  it.initialized_by = getpid();
  open_file("nvidiactl");
  return ok;
}

// ---- contexts

int current_device() { return device_of_thread; }

void set_current_device(int device) { device_of_thread = device; }

bool has_context(int device) {
  Locked lock;
  if (device < 0 || device >= num_devices()) return false;
  const Device& it = state().devices[device];
  return it.retained || it.by_runtime;
}

static void make_context(int device) {
  if (has_context(device)) return;
  open_file("nvidia-uvm");
  open_file("nvidia" + std::to_string(device));
}

int use_context() {
  Locked lock;
  if (int error = initialize()) return error;
  if (device_of_thread < 0) device_of_thread = 0;
  make_context(device_of_thread);
  Device& it = state().devices[device_of_thread];
  if (it.by_runtime) return ok;
  it.by_runtime = true;
  write_books(device_of_thread);
  return ok;
}

int retain_context(int device) {
  Locked lock;
  if (int error = initialize()) return error;
  if (device < 0 || device >= num_devices()) return invalid_device;
  make_context(device);
  state().devices[device].retained++;
  write_books(device);
  return ok;
}

int release_context(int device) {
  Locked lock;
  if (device < 0 || device >= num_devices()) return invalid_device;
  if (!state().devices[device].retained) return invalid_context;
  state().devices[device].retained--;
  write_books(device);
  return ok;
}

// ---- what is used

std::string memory_name(int device) { return state().gpu + "." + std::to_string(device); }

static std::string books_name(int device) { return "used." + memory_name(device); }

void write_books(int device) {
  Device& it = state().devices[device];
  if (it.books < 0) it.books = memfd_create(books_name(device).c_str(), MFD_CLOEXEC);
  it.in_books = it.used_bytes + (has_context(device) ? context_bytes : 0);
  if (ftruncate(it.books, it.in_books)) hazard("the rig cannot write its books");
}

template <typename Look>
static void for_each_entry(const std::string& folder, Look look) {
  DIR* opened = opendir(folder.c_str());
  if (!opened) return;  // it is gone, or another user's
  while (dirent* entry = readdir(opened))
    if (isdigit(entry->d_name[0])) look(entry->d_name);
  closedir(opened);
}

size_t used_bytes(int device) {
  std::set<std::string> names;
  for (const auto& name : {memory_name(device), books_name(device)}) names.insert("/memfd:" + name + " (deleted)");
  std::map<std::pair<dev_t, ino_t>, size_t> found;
  for_each_entry("/proc", [&](const std::string& process) {
    std::string folder = "/proc/" + process + "/fd";
    for_each_entry(folder, [&](const std::string& number) {
      char target[512];
      std::string link = folder + "/" + number;
      ssize_t length = readlink(link.c_str(), target, sizeof target);
      struct stat file;
      if (length > 0 && names.count(std::string(target, length)) && !stat(link.c_str(), &file))
        found[{file.st_dev, file.st_ino}] = file.st_size;
    });
  });
  size_t bytes = 0;
  for (const auto& [inode, size] : found) bytes += size;
  state().devices[device].others = bytes - state().devices[device].in_books;
  return bytes;
}

bool has_room(int device, size_t bytes) {
  const Device& it = state().devices[device];
  size_t total = state().total_bytes;
  return it.in_books + it.others + bytes <= total || used_bytes(device) + bytes <= total;
}

size_t total_memory() {
  Locked lock;
  return state().total_bytes;
}

int device_memory(size_t* free_bytes, size_t* total_bytes) {
  Locked lock;
  int device = device_of_thread;
  if (!has_context(device)) return invalid_context;
  size_t total = state().total_bytes, used = used_bytes(device);
  *total_bytes = total;
  *free_bytes = total - std::min(total, used);
  return ok;
}

}  // namespace rig
