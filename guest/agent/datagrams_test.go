package agent

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// ask sends datagrams and returns the answer to the last.
func (w *world) ask(t *testing.T, msgs ...string) (call string, status int, body string) {
	t.Helper()
	conn, err := net.Dial("udp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, m := range msgs {
		if _, err := conn.Write([]byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64<<10)
	n, err := conn.Read(buf)
	if err != nil || n < guestapi.CallIDSize+2 {
		t.Fatalf("answer of %d bytes, %v", n, err)
	}
	return string(buf[:guestapi.CallIDSize]), int(binary.BigEndian.Uint16(buf[guestapi.CallIDSize:])), string(buf[guestapi.CallIDSize+2 : n])
}

func identityJSON(t *testing.T, change func(*guestapi.Identity)) string {
	t.Helper()
	id := testIdentity(3)
	id.UnixNanos = 1
	if change != nil {
		change(&id)
	}
	raw, err := json.Marshal(id)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestDatagramThatComesAgainIsAppliedOnce(t *testing.T) {
	w := start(t)
	first, second := strings.Repeat("1", guestapi.CallIDSize), strings.Repeat("2", guestapi.CallIDSize)
	raw := identityJSON(t, nil)
	_, status, body := w.ask(t, first+raw)
	if status != 200 || !strings.HasPrefix(body, `{"generation":3,`) {
		t.Fatalf("status %d: %s", status, body)
	}
	call, status, again := w.ask(t, first+raw)
	if call != first || status != 200 || again != body {
		t.Errorf("the second time: %q, status %d: %s", call, status, again)
	}
	if call, status, _ := w.ask(t, second+raw); call != second || status != 200 {
		t.Errorf("another call: %q, status %d", call, status)
	}
	w.guest.mu.Lock()
	defer w.guest.mu.Unlock()
	if n := len(w.guest.applied); n != 2 {
		t.Errorf("%d identities applied, want 2", n)
	}
}

// A host that gave up has closed its socket, and asks again by another.
func TestAnswerThatMeetsNobody(t *testing.T) {
	peer := netip.MustParseAddr("127.0.0.2")
	w := start(t, func(c *Config) { c.Peer = peer })
	agent := netip.MustParseAddrPort(w.addr)
	call := strings.Repeat("1", guestapi.CallIDSize)
	dial := func() *net.UDPConn {
		t.Helper()
		conn, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, agent.Port())), net.UDPAddrFromAddrPort(agent))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(call + identityJSON(t, nil))); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	for range 20 {
		dial().Close()
	}
	conn := dial()
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 1<<10)
	n, err := conn.Read(answer)
	if err != nil || !strings.HasPrefix(string(answer[:n]), call) {
		t.Errorf("answered %q, %v", answer[:n], err)
	}
}

// A refusal that is longer than a packet comes all the same.
func TestLongAnswer(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("BERTH_TEST_ROOT") == "1" {
			t.Fatal("needs root")
		}
		t.Skip("needs root for a network namespace")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		if err := longAnswer(strings.Repeat("x", 4<<10)); err != nil {
			t.Error(err)
		}
	}()
	<-done
}

func longAnswer(answer string) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetMTU(lo, 1500), netlink.LinkSetUp(lo)); err != nil {
		return err
	}
	local := netip.MustParseAddr("127.0.0.1")
	d, err := listenDatagrams(netip.AddrPortFrom(local, 999), netip.Addr{}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer unix.Close(d.fd)
	caller, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: local.AsSlice(), Port: 999})
	if err != nil {
		return err
	}
	defer caller.Close()
	if _, err := caller.Write([]byte("?")); err != nil {
		return err
	}
	if _, err := d.receive(); err != nil {
		return err
	}
	d.answer = []byte(answer)
	d.send()
	if err := caller.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	got := make([]byte, 2*len(answer))
	n, err := caller.Read(got)
	if err == nil && string(got[:n]) != answer {
		err = fmt.Errorf("%d bytes came, want %d", n, len(answer))
	}
	return err
}

func TestBadDatagrams(t *testing.T) {
	w := start(t)
	id := strings.Repeat("9", guestapi.CallIDSize)
	for name, c := range map[string]struct {
		body string
		call string
	}{
		"nothing":      {"", "1"},
		"no JSON":      {"\x00\xff", "2"},
		"a wrong type": {`{"generation":"1"}`, "3"},
		"no entropy":   {identityJSON(t, func(id *guestapi.Identity) { id.Entropy = nil }), "4"},
	} {
		if _, status, answer := w.ask(t, c.call+id[1:]+c.body); status != 400 {
			t.Errorf("%s: status %d, want 400: %s", name, status, answer)
		}
	}
	// What is too short or too long is passed by, and the next one answered.
	long := id + strings.Repeat(" ", guestapi.MaxIdentityDatagram)
	if _, status, _ := w.ask(t, "", "short", long, "0"+id[1:]+identityJSON(t, nil)); status != 200 {
		t.Errorf("status %d", status)
	}
}

func TestIdentityOfAnySize(t *testing.T) {
	w := start(t)
	for i, size := range []int{1 << 10, 20 << 10, 40 << 10, 1 << 20} {
		id := testIdentity(uint64(i + 1))
		id.Env = map[string]string{"LARGE": strings.Repeat("x", size)}
		if done, err := w.client.Identity(t.Context(), id); err != nil || done.Generation != id.Generation {
			t.Errorf("%d bytes: %+v, %v", size, done, err)
		}
	}
}

// The guest waits awake for the one identity after that which asks for it.
func TestGuestStaysAwakeForTheNextIdentity(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("BERTH_TEST_ROOT") == "1" {
			t.Fatal("needs root")
		}
		t.Skip("needs root to poll")
	}
	d, err := listenDatagrams(netip.MustParseAddrPort("127.0.0.1:0"), netip.Addr{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(d.fd)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Bool
	ended := make(chan error)
	go func() {
		ended <- d.run(func(b, _ []byte, _ time.Time, _ netip.AddrPort) (int, []byte, bool) { return 200, b, asked.Load() })
	}()
	conn, err := net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(name.(*unix.SockaddrInet4).Port)).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		call        string
		asks, awake bool
	}{
		{"1", false, false},
		{"2", true, true},
		{"2", false, true}, // it came again
		{"3", false, false},
	} {
		asked.Store(c.asks)
		msg := strings.Repeat(c.call, guestapi.CallIDSize)
		if _, err := conn.Write([]byte(msg)); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 64)
		if n, err := conn.Read(answer); err != nil || !strings.HasPrefix(string(answer[:n]), msg) {
			t.Fatalf("answered %q, %v", answer[:n], err)
		}
		want := 0
		if c.awake {
			want = int(awakeTime / time.Microsecond)
		}
		// It is set after the answer.
		got := -1
		for end := time.Now().Add(10 * time.Second); got != want; runtime.Gosched() {
			if got, err = unix.GetsockoptInt(d.fd, unix.SOL_SOCKET, unix.SO_BUSY_POLL); err != nil || time.Now().After(end) {
				t.Fatalf("call %s: polls for %d µs, %v; want %d", c.call, got, err, want)
			}
		}
	}
	d.close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestArrival(t *testing.T) {
	control := func(kind uint32, at time.Time) []byte {
		b := make([]byte, unix.SizeofCmsghdr+16)
		binary.NativeEndian.PutUint64(b, uint64(len(b)))
		binary.NativeEndian.PutUint32(b[8:], unix.SOL_SOCKET)
		binary.NativeEndian.PutUint32(b[12:], kind)
		binary.NativeEndian.PutUint64(b[16:], uint64(at.Unix()))
		binary.NativeEndian.PutUint64(b[24:], uint64(at.Nanosecond()))
		return b
	}
	made := time.Now()
	for name, c := range map[string]struct {
		control []byte
		ago     time.Duration
	}{
		"a moment ago":           {control(unix.SO_TIMESTAMPNS, time.Now().Add(-300*time.Millisecond)), 300 * time.Millisecond},
		"before the clock's set": {control(unix.SO_TIMESTAMPNS, time.Now().Add(-time.Hour)), 0},
		"in the future":          {control(unix.SO_TIMESTAMPNS, time.Now().Add(time.Hour)), 0},
		"no time":                {control(unix.SCM_RIGHTS, time.Now()), 0},
		"nothing":                {nil, 0},
		"cut short":              {control(unix.SO_TIMESTAMPNS, time.Now())[:20], 0},
	} {
		if got := arrival(c.control); got.Before(made.Add(-c.ago)) || got.After(time.Now().Add(-c.ago)) {
			t.Errorf("%s: %s ago, want %s", name, time.Since(got), c.ago)
		}
	}
}
