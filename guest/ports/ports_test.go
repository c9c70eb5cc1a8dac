package ports

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/guest/guestapi"
)

const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

const tcp4 = heading + `   0: 020012C6:03E7 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12 1 0000000000000000 100 0 0 10 0
   2: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000  1000        0 13 1 0000000000000000 20 4 30 10 -1
   3: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 14 1 0000000000000000 100 0 0 10 0
   4: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 15 1 0000000000000000 100 0 0 10 0
   5: 00000000:03E7 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 16 1 0000000000000000 100 0 0 10 0
`

const tcp6 = heading + `   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 21 1 0000000000000000 100 0 0 10 0
   1: 00000000000000000000000000000000:0BB8 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 22 1 0000000000000000 100 0 0 10 0
`

const udp4 = heading + `  77: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 31 2 0000000000000000 0
  78: 0100007F:D431 0100007F:0035 01 00000000:00000000 00:00000000 00000000     0        0 32 2 0000000000000000 0
`

// fakeProc is a proc directory with those tables and one process of two descriptors.
func fakeProc(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"net/tcp": tcp4, "net/tcp6": tcp6, "net/udp": udp4,
		"70/comm": "server\n", "9/comm": "na\xffme\n", "self/comm": "x\n", "8/comm": "ended\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"70/fd/3": "socket:[12]", "70/fd/4": "socket:[14]", "70/fd/5": "/dev/null", "9/fd/0": "pipe:[12]", "9/fd/1": "socket:[14]", "9/fd/2": "socket:[22",
		"9/fd/7": "socket:[31]",
	} {
		path := filepath.Join(dir, link)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestWhatListensIsListed(t *testing.T) {
	got, err := Listening(fakeProc(t), netip.MustParseAddrPort("198.18.0.2:999"))
	if err != nil {
		t.Fatal(err)
	}
	want := []guestapi.ListeningPort{
		{Port: 53, Protocol: "udp", Address: "0.0.0.0", Process: "na\uFFFDme", PID: 9},
		{Port: 80, Protocol: "tcp", Address: "0.0.0.0", Process: "na\uFFFDme", PID: 9},
		{Port: 999, Protocol: "tcp", Address: "0.0.0.0"},
		{Port: 3000, Protocol: "tcp", Address: "::"},
		{Port: 8080, Protocol: "tcp", Address: "127.0.0.1", Process: "server", PID: 70},
		{Port: 8080, Protocol: "tcp", Address: "::1"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestOwnListenersAreFound(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	ports := func(own netip.AddrPort) string {
		list, err := Listening("/proc", own)
		if err != nil {
			t.Fatal(err)
		}
		var mine []string
		for _, p := range list {
			if p.PID == os.Getpid() || p.Port == int(own.Port()) {
				mine = append(mine, fmt.Sprintf("%s %s:%d %s", p.Protocol, p.Address, p.Port, p.Process))
			}
		}
		return strings.Join(mine, ", ")
	}
	name := "ports.test"
	all := ports(netip.AddrPort{})
	for _, want := range []string{"tcp " + tcp.Addr().String() + " " + name, "udp " + udp.LocalAddr().String() + " " + name} {
		if !strings.Contains(all, want) {
			t.Errorf("%q lacks %q", all, want)
		}
	}
	if got := ports(tcp.Addr().(*net.TCPAddr).AddrPort()); strings.Contains(got, "tcp ") || !strings.Contains(got, "udp ") {
		t.Errorf("without its own: %q", got)
	}
}

func TestATableIsParsed(t *testing.T) {
	table := heading + `   1: 0200A8C0:01BB 0100A8C0:C350 01 00000000:00000000 00:00000000 00000000     0        0 11 1 0
   2: 0000000000000000FFFF00000200A8C0:01BB 0000000000000000FFFF00000100A8C0:C350 08 0:0 0:0 0 0 0 12
   3: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 0:0 0:0 0 1000 0 13
   4: 0100007F:1F90 0100007F:C001 100 0:0 0:0 0 0 0 14
`
	want := []Socket{
		{netip.MustParseAddrPort("192.168.0.2:443"), netip.MustParseAddrPort("192.168.0.1:50000"), 1, 11, 0},
		{netip.MustParseAddrPort("192.168.0.2:443"), netip.MustParseAddrPort("192.168.0.1:50000"), 8, 12, 0},
		{netip.MustParseAddrPort("[::1]:22"), netip.MustParseAddrPort("[::]:0"), stateListen, 13, 1000},
	}
	var got []Socket
	if err := parse(strings.NewReader(table), func(s Socket) bool { got = append(got, s); return true }); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{tcp4, tcp6, udp4, "", "\n\n", heading + "0: :0 :0 0A 0 0 0 0 0 0\n", heading + strings.Repeat("x", 70_000)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		n := 0
		_ = parse(strings.NewReader(string(raw)), func(s Socket) bool {
			if !s.Local.Addr().IsValid() || !s.Remote.Addr().IsValid() {
				t.Errorf("visited %+v", s)
			}
			n++
			return n < 100
		})
	})
}

func FuzzParseAddr(f *testing.F) {
	for _, seed := range []string{"0100007F:1F90", "00000000000000000000000001000000:0050", "0000000000000000FFFF00000100007F:0050", ":", "+1234567:0050", "0100007F:+F90"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if addr, ok := parseAddr(text); ok && (!addr.IsValid() || addr.Addr().Is4In6()) {
			t.Errorf("%q gives %v", text, addr)
		}
	})
}

func FuzzSocketInode(f *testing.F) {
	for _, seed := range []string{"socket:[12]", "socket:[]", "socket:[-1]", "pipe:[1]", "socket:[1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, link string) {
		if inode, ok := socketInode(link); ok && link != fmt.Sprintf("socket:[%d]", inode) && !strings.HasPrefix(link, "socket:[0") {
			t.Errorf("%q gives %d", link, inode)
		}
	})
}
