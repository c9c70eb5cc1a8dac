package proc

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// ttyGID is Debian's group tty.
const ttyGID = 5

// openTerminal makes a pseudo-terminal that belongs to the user. The master is
// never put into blocking mode: its reads must obey deadlines.
func openTerminal(user User, size guestapi.TTY) (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	n := 0
	err = control(master, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		n, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	})
	if err == nil {
		err = setSize(master, size)
	}
	if err == nil {
		err = speakUTF8(master)
	}
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		_ = master.Close()
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	// As login does it: the user may open the terminal, group tty may write to it.
	_ = slave.Chown(int(user.UID), ttyGID)
	return master, slave, nil
}

// speakUTF8 has the terminal erase a whole character at a backspace.
func speakUTF8(master *os.File) error {
	return control(master, func(fd int) error {
		modes, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return err
		}
		modes.Iflag |= unix.IUTF8
		return unix.IoctlSetTermios(fd, unix.TCSETS, modes)
	})
}

func setSize(master *os.File, size guestapi.TTY) error {
	return control(master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
}

// foreground is the process group that a terminal's Ctrl-C would reach.
func foreground(master *os.File) (pgid int, err error) {
	err = control(master, func(fd int) error {
		pgid, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	return pgid, err
}

func control(f *os.File, fn func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = fn(int(fd)) }); err != nil {
		return err
	}
	return inner
}
