// Package contain runs a command of the tenant's as the root, or another user, of
// namespaces of its own: users, processes and mounts. Outside of them it has the rights
// of one user of the guest and no more, so what a Dockerfile runs as root cannot read
// what is guestapp's. Its root directory may be that of an image.
//
// The first process in the namespaces is this program too. It ends when the one that
// started it does, and with it ends all that is in them.
package contain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/proc"
)

// The modes of the program: Outside is run by guestapp as root, and runs Inside.
const (
	OutsideMode = "contain"
	InsideMode  = "contained"
)

// Users of the namespaces: 0 is the guest's user that the command is for, and n, up to
// maxID, is firstID+n, whom nothing else in a guest runs as.
const (
	firstID = 100_000
	maxID   = 65_535
)

// Owns reports whether a user's number is one that only contained commands have.
func Owns(uid uint32) bool { return uid > firstID && uid <= firstID+maxID }

// Spec is what is run.
type Spec struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env"`            // all of it, as name=value; HOME and PATH are added if they are not there
	Dir  string   `json:"dir,omitempty"`  // is made if it is not there; "": /
	User string   `json:"user,omitempty"` // name or number, and group, as USER of a Dockerfile; "": root
	Root string   `json:"root,omitempty"` // the root directory; "": the guest's own
}

// maxSpec bounds a Spec, in bytes: an image's variables and an app's.
const maxSpec = 8 << 20

// Command returns the command that runs a Spec for a user of the guest. program is this
// one. The Spec, which may have secrets in it, is kept in a file that is root's.
func Command(program, file, user string, s Spec) (command.Command, error) {
	raw, err := json.Marshal(s)
	if err == nil && len(raw) > maxSpec {
		err = errors.New("its arguments and variables are too long")
	}
	if err == nil {
		err = atomicfile.Write(file, raw, 0o600)
	}
	if err != nil {
		return command.Command{}, fmt.Errorf("contain a command: %w", err)
	}
	return command.Command{Argv: []string{program, OutsideMode, "-spec", file, "-as", user}, Dir: "/", User: "root"}, nil
}

// lifeline is the descriptor from which the inside reads the Spec, and then that the
// outside is gone.
const lifeline = 3

// Outside runs the Spec in a file, to its end, and returns its exit code.
func Outside(file, as string) (int, error) {
	passOverTerm()
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxSpec))
	if err := errors.Join(err, f.Close()); err != nil {
		return 0, err
	}
	user, err := proc.LookUpUser(as)
	if err != nil {
		return 0, err
	}
	program, err := os.Executable()
	if err != nil {
		return 0, err
	}
	in, out, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer out.Close()
	// /dev/stdout, which many images log to, is opened anew: a pipe is its owner's.
	for _, stream := range []*os.File{os.Stdout, os.Stderr} {
		_ = stream.Chown(int(user.UID), int(user.GID))
	}
	cmd := &exec.Cmd{
		Path: program, Args: []string{program, InsideMode}, Dir: "/", Env: []string{}, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, ExtraFiles: []*os.File{in},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
			UidMappings: mapping(user.UID), GidMappings: mapping(user.GID), GidMappingsEnableSetgroups: true,
			Credential: &syscall.Credential{Uid: 0, Gid: 0},
		},
	}
	if err := errors.Join(cmd.Start(), in.Close()); err != nil {
		return 0, fmt.Errorf("make namespaces: %w", err)
	}
	_, _ = out.Write(raw) // that the inside has ended is told by Wait
	err = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		code, _ := proc.ExitCode(status)
		return code, nil
	}
	return 0, err
}

// passOverTerm lets this program live as long as its command, which is asked to end by a
// SIGTERM to all of the process group. The signal is not ignored: the command would inherit
// that.
func passOverTerm() { signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM) }

func mapping(id uint32) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(id), Size: 1}, {ContainerID: 1, HostID: firstID + 1, Size: maxID}}
}
