/* A disk that is slow for some files: preloaded into a process, it delays what reaches the disk and nothing else.
 *
 * SLOW_DISK_FILES is what the names of these files contain, SLOW_DISK_CONTROL a file with the delay in milliseconds,
 * which is read again each time. What goes to the kernel's cache alone, as write(2) does, is not delayed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static long delay_ms(void) {
  const char* control = getenv("SLOW_DISK_CONTROL");
  char text[32] = {0};
  int file = control ? open(control, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return 0;
  ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  return length > 0 ? atol(text) : 0;
}

static void wait_for_disk(int file) {
  int before = errno;
  const char* wanted = getenv("SLOW_DISK_FILES");
  char link[64], name[4096] = {0};
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  if (wanted && readlink(link, name, sizeof name - 1) > 0 && strstr(name, wanted)) {
    long ms = delay_ms();
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
    while (ms > 0 && nanosleep(&left, &left) && errno == EINTR) {
    }
  }
  errno = before;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int file) {
  wait_for_disk(file);
  return NEXT(fsync)(file);
}

int fdatasync(int file) {
  wait_for_disk(file);
  return NEXT(fdatasync)(file);
}

ssize_t pwrite(int file, const void* data, size_t size, off_t offset) {
  wait_for_disk(file);
  return NEXT(pwrite)(file, data, size, offset);
}

ssize_t pwrite64(int file, const void* data, size_t size, off64_t offset) {
  wait_for_disk(file);
  return NEXT(pwrite64)(file, data, size, offset);
}

int ftruncate(int file, off_t size) {
  wait_for_disk(file);
  return NEXT(ftruncate)(file, size);
}

int ftruncate64(int file, off64_t size) {
  wait_for_disk(file);
  return NEXT(ftruncate64)(file, size);
}
