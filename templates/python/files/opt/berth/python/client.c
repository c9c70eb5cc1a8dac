/*
 * /usr/local/bin/python: has the resident interpreter (resident.py) run a
 * command, and is it for its caller: standard streams, signals, exit status.
 * What the resident cannot run exactly as python3 would, python3 runs: every way
 * out before the resident has said "mine" ends in fallback().
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SOCKET
#define SOCKET "/run/berth-python.sock"
#endif
#ifndef SELF
#define SELF "/usr/local/bin/python"
#endif
#ifndef PYTHON
#define PYTHON "/usr/bin/python3"
#endif

extern char **environ;
static char **args;
static sigset_t before; /* the signal mask that the caller gave */

static void fallback(void)
{
	const char *exec = (const char *)getauxval(AT_EXECFN);
	const char *name = exec ? strrchr(exec, '/') : NULL;

	/* A virtual environment's link to here: python3 finds it by its own path. */
	if (name && !strncmp(name, "/python", 7) && strcmp(exec, SELF))
		args[0] = (char *)exec;
	else
		args[0] = PYTHON;
	sigprocmask(SIG_SETMASK, &before, NULL);
	execv(PYTHON, args);
	_exit(127);
}

static int begins(const char *s, const char *with)
{
	return !strncmp(s, with, strlen(with));
}

/* What python3 or its libraries read before there is a program to run. */
static int plain_environment(void)
{
	int utf8 = 0;

	for (char **e = environ; *e; e++) {
		if (begins(*e, "PYTHON") || begins(*e, "LD_") || begins(*e, "LC_") || begins(*e, "MALLOC_") ||
		    begins(*e, "GLIBC_") || begins(*e, "OPENSSL_"))
			return 0;
		if (begins(*e, "LANG="))
			utf8 = !strcmp(*e + 5, "C.UTF-8");
	}
	return utf8;
}

/* Only the standard streams are handed over. */
static int no_other_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int none = dir != NULL;

	for (struct dirent *e; none && (e = readdir(dir));)
		none = e->d_name[0] == '.' || atoi(e->d_name) < 3 || atoi(e->d_name) == dirfd(dir);
	if (dir)
		closedir(dir);
	return none;
}

static int plain_call(int argc)
{
	const char *exec = (const char *)getauxval(AT_EXECFN);
	const char *arg = argc > 1 ? args[1] : "-";
	sigset_t none;

	if (!exec || (strcmp(exec, SELF) && strcmp(args[0], SELF)))
		return 0;
	if (getuid() || geteuid() || getgid() || getegid())
		return 0;
	sigemptyset(&none);
	if (memcmp(&before, &none, 8)) /* the kernel knows 64 signals */
		return 0;
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0 || isatty(fd))
			return 0;
	if (!no_other_files())
		return 0;
	if (!strcmp(arg, "-c") || !strcmp(arg, "-m"))
		return argc > 2;
	return arg[0] && (arg[0] != '-' || !arg[1]);
}

static void append(char **buf, size_t *len, size_t *room, const void *data, size_t n)
{
	while (*len + n > *room) {
		*room = *room ? 2 * *room : 8192;
		*buf = realloc(*buf, *room);
		if (!*buf)
			fallback();
	}
	memcpy(*buf + *len, data, n);
	*len += n;
}

static void strings(char **buf, size_t *len, size_t *room, char **list)
{
	for (; *list; list++)
		append(buf, len, room, *list, strlen(*list) + 1);
	append(buf, len, room, "", 1);
}

/* One message: a header, the cwd, then arguments and environment, each list
 * ended by an empty string (which no list can hold: see plain()). */
struct header {
	uint32_t size, umask, ignored;
	int32_t nice;
	struct rlimit limits[16];
};

static int plain(char **list)
{
	for (; *list; list++)
		if (!**list)
			return 0;
	return 1;
}

static void ask(int s)
{
	struct header h = {0};
	char *buf = NULL, cwd[4096];
	size_t len = 0, room = 0;
	int fds[3] = {0, 1, 2};
	union { struct cmsghdr align; char space[CMSG_SPACE(sizeof fds)]; } control = {0};

	if (!getcwd(cwd, sizeof cwd) || cwd[0] != '/' || !plain(args + 1) || !plain(environ))
		fallback();
	h.umask = umask(0);
	umask(h.umask);
	for (int n = 1; n < 32; n++) {
		struct sigaction old;
		if (!sigaction(n, NULL, &old) && old.sa_handler == SIG_IGN)
			h.ignored |= 1u << n;
	}
	h.nice = getpriority(PRIO_PROCESS, 0);
	for (int n = 0; n < 16; n++)
		getrlimit(n, &h.limits[n]);
	append(&buf, &len, &room, &h, sizeof h);
	append(&buf, &len, &room, cwd, strlen(cwd) + 1);
	strings(&buf, &len, &room, args + 1);
	strings(&buf, &len, &room, environ);
	((struct header *)buf)->size = len;

	struct iovec part = {buf, len};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.space};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fds);
	memcpy(CMSG_DATA(c), fds, sizeof fds);
	ssize_t n = sendmsg(s, &m, MSG_NOSIGNAL);
	for (size_t sent = 0; n >= 0 && (sent += n) < len;)
		n = send(s, buf + sent, len - sent, MSG_NOSIGNAL);
	if (n < 0)
		fallback();
	free(buf);
}

static int answer(int s, int32_t *words, int count)
{
	return recv(s, words, 4 * count, MSG_WAITALL) == 4 * count;
}

/* The child ended as status says; so does this process. */
static void end(int32_t code, int32_t status)
{
	struct rlimit none = {0};
	sigset_t one;

	if (code == CLD_EXITED)
		_exit(status);
	setrlimit(RLIMIT_CORE, &none); /* the child has left one, if any */
	signal(status, SIG_DFL);
	sigemptyset(&one);
	sigaddset(&one, status);
	sigprocmask(SIG_UNBLOCK, &one, NULL);
	raise(status);
	_exit(128 + status);
}

int main(int argc, char **argv)
{
	static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET};
	int32_t child, ended[2];
	sigset_t set;

	args = argv;
	sigprocmask(SIG_SETMASK, NULL, &before);
	if (argc < 1 || !plain_environment() || !plain_call(argc))
		fallback();
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (s < 0 || connect(s, (struct sockaddr *)&address, sizeof address))
		fallback();
	sigemptyset(&set);
	for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
		sigaddset(&set, forwarded[i]);
	sigprocmask(SIG_BLOCK, &set, NULL);
	int signals = signalfd(-1, &set, SFD_CLOEXEC);
	if (signals < 0)
		fallback();
	ask(s);
	if (!answer(s, &child, 1))
		fallback();
	/* The streams are the child's now: a pipe that it closes is closed. */
	close(0);
	close(1);
	for (;;) {
		struct pollfd wait[] = {{s, POLLIN, 0}, {signals, POLLIN, 0}};
		struct signalfd_siginfo got;
		if (poll(wait, 2, -1) < 0)
			continue;
		/* The number is the child's until this process has closed s. */
		if (wait[1].revents && read(signals, &got, sizeof got) == sizeof got)
			kill(child, got.ssi_signo);
		if (wait[0].revents)
			break;
	}
	if (answer(s, ended, 2))
		end(ended[0], ended[1]);
	kill(-child, SIGKILL);
	static const char gone[] = "python: the resident interpreter has ended\n";
	return write(2, gone, sizeof gone - 1) < 0 ? 1 : 1;
}
