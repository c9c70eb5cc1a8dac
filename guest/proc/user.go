package proc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// User is who a process runs as.
type User struct {
	Name   string // empty for a uid without an entry
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary
	Home   string
	Shell  string
}

// ErrNoUser is returned for a user that the guest does not have.
var ErrNoUser = errors.New("no such user")

// The guest's user database. The C library's other sources (NIS, LDAP) do not
// exist in guests, and a static program could not ask them.
const (
	passwdPath = "/etc/passwd"
	groupPath  = "/etc/group"
)

// LookUpUser finds a user by name, by uid or by uid:gid; the empty string is
// root. A uid needs no entry; a name does.
func LookUpUser(who string) (User, error) {
	return lookUp(who, passwdPath, groupPath)
}

func lookUp(who, passwd, group string) (User, error) {
	name, gidText, hasGID := strings.Cut(who, ":")
	if name == "" && !hasGID {
		name = "root"
	}
	user, err := findUser(passwd, name)
	if err != nil {
		return User{}, err
	}
	if hasGID {
		gid, err := strconv.ParseUint(gidText, 10, 32)
		if err != nil {
			return User{}, fmt.Errorf("%w: %q: want a name, uid or uid:gid", ErrNoUser, who)
		}
		user.GID = uint32(gid)
		return user, nil
	}
	if user.Name != "" {
		user.Groups, err = memberships(group, user.Name)
	}
	return user, err
}

// findUser looks for an entry by name, then by uid.
func findUser(passwd, name string) (User, error) {
	uid, numErr := strconv.ParseUint(name, 10, 32)
	var found *User
	err := eachLine(passwd, func(line string) bool {
		u, ok := parsePasswd(line)
		if !ok || (u.Name != name && (numErr != nil || u.UID != uint32(uid))) {
			return true
		}
		// A name that looks like a number means the name, as in useradd's tools.
		if found == nil || u.Name == name {
			found = &u
		}
		return u.Name != name
	})
	switch {
	case found != nil:
		return *found, nil
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return User{}, err
	case name == "root" || name == "0":
		return User{Name: "root", Home: "/root", Shell: "/bin/sh"}, nil
	case numErr == nil:
		return User{UID: uint32(uid), GID: uint32(uid), Home: "/", Shell: "/bin/sh"}, nil
	}
	return User{}, fmt.Errorf("%w: %q", ErrNoUser, name)
}

// parsePasswd reads name:password:uid:gid:comment:home:shell.
func parsePasswd(line string) (User, bool) {
	f := strings.Split(line, ":")
	if len(f) != 7 || f[0] == "" {
		return User{}, false
	}
	uid, err1 := strconv.ParseUint(f[2], 10, 32)
	gid, err2 := strconv.ParseUint(f[3], 10, 32)
	if err1 != nil || err2 != nil {
		return User{}, false
	}
	u := User{Name: f[0], UID: uint32(uid), GID: uint32(gid), Home: f[5], Shell: f[6]}
	if u.Home == "" {
		u.Home = "/"
	}
	if u.Shell == "" {
		u.Shell = "/bin/sh"
	}
	return u, true
}

// memberships lists the groups that name their members: name:password:gid:a,b,c.
func memberships(group, name string) ([]uint32, error) {
	var gids []uint32
	err := eachLine(group, func(line string) bool {
		f := strings.Split(line, ":")
		if len(f) != 4 || !slices.Contains(strings.Split(f[3], ","), name) {
			return true
		}
		if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil {
			gids = append(gids, uint32(gid))
		}
		return true
	})
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return gids, err
}

// maxUserFile bounds what is read of a file that the workload may write.
const maxUserFile = 4 << 20

func eachLine(path string, visit func(string) bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxUserFile))
	for lines.Scan() {
		if !visit(lines.Text()) {
			break
		}
	}
	return lines.Err()
}

// Dir is where the user's commands start: the home directory, or / without one.
func (u User) Dir() string {
	if st, err := os.Stat(u.Home); err == nil && st.IsDir() {
		return u.Home
	}
	return "/"
}
