package stack

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestPreflightRefusesWithOneSentence(t *testing.T) {
	good := machine{
		goarch:       "amd64",
		memoryMB:     func() (int, error) { return 8192, nil },
		diskMB:       func(string) (int, error) { return 20480, nil },
		deviceExists: func(string) bool { return true },
	}
	cases := []struct {
		name  string
		spoil func(*machine)
		want  string // part of the sentence; "" means that it passes
	}{
		{"a good machine", func(*machine) {}, ""},
		{"not root", func(m *machine) { m.uid = 1000 }, "needs root"},
		{"another architecture", func(m *machine) { m.goarch = "arm64" }, "this machine is arm64"},
		{"no tun device", func(m *machine) { m.deviceExists = func(string) bool { return false } }, "/dev/net/tun is missing"},
		{"too little memory", func(m *machine) { m.memoryMB = func() (int, error) { return 1000, nil } }, "1000 MB are available and 3072 MB are needed"},
		{"too little disk", func(m *machine) { m.diskMB = func(string) (int, error) { return 500, nil } }, "500 MB are free"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o, err := Options{Root: t.TempDir()}.withDefaults()
			if err != nil {
				t.Fatal(err)
			}
			m := good
			c.spoil(&m)
			err = o.preflight(m)
			if c.want == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if !IsRefusal(err) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one sentence with %q", err, c.want)
			}
		})
	}
}

func TestTakenPortIsRefusedByNameOfItsHolder(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	// The listener stands where the first replica's public API would.
	o, err := Options{Root: t.TempDir(), PortBase: port - 1}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	err = o.checkPorts()
	if !IsRefusal(err) {
		t.Fatalf("got %v, want a refusal", err)
	}
	for _, part := range []string{"port " + strconv.Itoa(port), "replica r1", "pid " + strconv.Itoa(os.Getpid()), "BERTH_PORT_BASE"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the refusal %q lacks %q", err, part)
		}
	}
}

func TestStacksOfDifferentRangesShareNothing(t *testing.T) {
	type owner struct{ hostRange, host int }
	cidrs, uids := map[string]owner{}, map[int]owner{}
	for hostRange := range 8 {
		o := Options{HostRange: hostRange}
		for host := range 8 {
			me := owner{hostRange, host}
			cidr, uid := o.slotCIDR(host), o.baseUID(host)
			if cidr != cidr.Masked() {
				t.Errorf("%v: %s has host bits", me, cidr)
			}
			if other, taken := cidrs[cidr.String()]; taken {
				t.Errorf("%v and %v share %s", me, other, cidr)
			}
			if other, taken := uids[uid]; taken {
				t.Errorf("%v and %v share uid %d", me, other, uid)
			}
			cidrs[cidr.String()], uids[uid] = me, me
		}
	}
}

func TestBadPortBase(t *testing.T) {
	for _, bad := range []string{"x", "0", "-1", "70000", "65530"} {
		t.Setenv("BERTH_PORT_BASE", bad)
		if _, err := (Options{Root: t.TempDir()}).withDefaults(); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("BERTH_PORT_BASE=%s: got %v", bad, err)
		}
	}
}
