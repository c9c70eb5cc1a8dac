package contain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/proc"
)

// Exit codes, as a shell's.
const (
	exitFailed        = 125 // of this program, not of the command
	exitNotExecutable = 126
	exitNotFound      = 127
	exitKilled        = 137
)

// Inside is the first process in the namespaces. It returns the command's exit code.
func Inside() int {
	syscall.CloseOnExec(lifeline)
	passOverTerm()
	f := os.NewFile(lifeline, "lifeline")
	from := json.NewDecoder(io.LimitReader(f, maxSpec))
	var s Spec
	if err := from.Decode(&s); err != nil {
		return failed(exitFailed, fmt.Errorf("what is to be run: %w", err))
	}
	go func() { // ends with the program
		_, _ = io.Copy(io.Discard, f)
		os.Exit(exitKilled)
	}()
	if err := enter(s.Root); err != nil {
		return failed(exitFailed, err)
	}
	pid, code, err := start(s)
	if err != nil {
		return failed(code, err)
	}
	for {
		var status syscall.WaitStatus
		// All that lost its parent is this process's child.
		switch ended, err := syscall.Wait4(-1, &status, 0, nil); {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return failed(exitFailed, fmt.Errorf("wait: %w", err))
		case ended == pid:
			code, _ := proc.ExitCode(status)
			return code
		}
	}
}

func failed(code int, err error) int {
	fmt.Fprintf(os.Stderr, "%v\n", err)
	return code
}

const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// start starts the command; of an error, code is how the program ends.
func start(s Spec) (pid, code int, err error) {
	if len(s.Argv) == 0 {
		return 0, exitFailed, errors.New("there is no command")
	}
	user, err := lookUp(s.User)
	if err != nil {
		return 0, exitFailed, err
	}
	env := slices.Clone(s.Env)
	path := withDefault(&env, "PATH", usualPath)
	withDefault(&env, "HOME", user.Home)
	dir := s.Dir
	if dir == "" {
		dir = "/"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, exitFailed, fmt.Errorf("its working directory: %w", err)
	}
	if err := os.Chdir(dir); err != nil {
		return 0, exitFailed, fmt.Errorf("its working directory: %w", err)
	}
	if err := os.Setenv("PATH", path); err != nil {
		return 0, exitFailed, err
	}
	program, err := exec.LookPath(s.Argv[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return 0, exitOf(err), fmt.Errorf("%s: %w", s.Argv[0], errors.Unwrap(err))
	}
	for _, stream := range []*os.File{os.Stdout, os.Stderr} {
		_ = stream.Chown(int(user.UID), int(user.GID)) // see Outside
	}
	unix.Umask(0o022)
	pid, err = syscall.ForkExec(program, s.Argv, &syscall.ProcAttr{
		Env: env, Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: user.Groups}},
	})
	if err != nil {
		return 0, exitOf(err), fmt.Errorf("%s: %w", s.Argv[0], err)
	}
	return pid, 0, nil
}

func exitOf(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return exitNotFound
	}
	return exitNotExecutable
}

// withDefault returns a variable's value, which is set if it is not there.
func withDefault(env *[]string, name, value string) string {
	for _, kv := range slices.Backward(*env) { // the later counts
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	*env = append(*env, name+"="+value)
	return value
}

// lookUp finds a user as an image's configuration names it: user, user:group, by name or
// number.
func lookUp(who string) (proc.User, error) {
	name, group, has := strings.Cut(who, ":")
	if name == "" {
		name = "0"
	}
	if has && group != "" {
		gid, err := groupID(group)
		if err != nil {
			return proc.User{}, err
		}
		name += ":" + gid
	}
	user, err := proc.LookUpUser(name)
	if err != nil {
		return user, fmt.Errorf("USER %s: the image has no such user", who)
	}
	if user.UID > maxID || user.GID > maxID {
		return user, fmt.Errorf("USER %s: numbers go up to %d", who, maxID)
	}
	user.Groups = slices.DeleteFunc(user.Groups, func(id uint32) bool { return id > maxID })
	return user, nil
}

// maxGroups bounds what is read of an image's file of groups, in bytes.
const maxGroups = 1 << 20

func groupID(group string) (string, error) {
	if _, err := strconv.ParseUint(group, 10, 32); err == nil {
		return group, nil
	}
	f, err := os.Open("/etc/group")
	if err == nil {
		defer f.Close()
		raw, _ := io.ReadAll(io.LimitReader(f, maxGroups))
		for line := range strings.Lines(string(raw)) {
			// name:password:gid:members
			if f := strings.Split(line, ":"); len(f) == 4 && f[0] == group {
				return f[2], nil
			}
		}
	}
	return "", fmt.Errorf("USER …:%s: the image has no such group", group)
}
