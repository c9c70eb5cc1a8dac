package main

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// watchButton listens for ACPI events on generic netlink, which is where the
// button driver tells of itself without an input device.
func watchButton(presses chan<- struct{}, notes chan<- string) {
	fd, group, err := subscribe("acpi_event")
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(group))
	}
	if err != nil {
		notes <- "acpi events: " + err.Error()
		return
	}
	buf := make([]byte, 8192)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return
		}
		if bytes.Contains(buf[:n], []byte("button/power")) {
			presses <- struct{}{}
		}
	}
}

// subscribe opens a socket and finds the first multicast group of a family.
func subscribe(family string) (fd int, group uint32, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC)
	if err != nil {
		return 0, 0, err
	}
	name := append([]byte(family), 0)
	body := []byte{unix.CTRL_CMD_GETFAMILY, 1, 0, 0}
	body = attr(body, unix.CTRL_ATTR_FAMILY_NAME, name)
	msg := binary.LittleEndian.AppendUint32(nil, uint32(16+len(body)))
	msg = binary.LittleEndian.AppendUint16(msg, unix.GENL_ID_CTRL)
	msg = binary.LittleEndian.AppendUint16(msg, unix.NLM_F_REQUEST)
	msg = append(msg, make([]byte, 8)...) // sequence and port
	msg = append(msg, body...)
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, 0, err
	}
	buf := make([]byte, 8192)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return 0, 0, err
	}
	if n < 20 || binary.LittleEndian.Uint16(buf[4:]) == unix.NLMSG_ERROR {
		return 0, 0, fmt.Errorf("no family %s", family)
	}
	groups := attrs(buf[20:n])[unix.CTRL_ATTR_MCAST_GROUPS]
	for _, g := range attrs(groups) {
		if id := attrs(g)[unix.CTRL_ATTR_MCAST_GRP_ID]; len(id) >= 4 {
			return fd, binary.LittleEndian.Uint32(id), nil
		}
	}
	return 0, 0, fmt.Errorf("family %s has no group", family)
}

func attr(b []byte, typ uint16, value []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.LittleEndian.AppendUint16(b, typ)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func attrs(b []byte) map[uint16][]byte {
	out := map[uint16][]byte{}
	for len(b) >= 4 {
		n := int(binary.LittleEndian.Uint16(b))
		if n < 4 || n > len(b) {
			break
		}
		out[binary.LittleEndian.Uint16(b[2:])&0x3fff] = b[4:n]
		b = b[min((n+3)&^3, len(b)):]
	}
	return out
}
