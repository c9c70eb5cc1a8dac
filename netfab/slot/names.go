package slot

import (
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/net/dns/dnsmessage"
)

const (
	// namesPort is where a guest's gateway answers questions for names.
	namesPort = 53
	// namesTTL is how long an answer holds, in seconds. It is short, because a
	// stored guest may wake where another configuration is.
	namesTTL = 30
	// maxQuestion is more than one question for a name takes, in bytes.
	maxQuestion = 1500
)

// Names opens what answers the guest of slot n for names of databases, with the address
// of its gateway, until it is closed. The slot's rules let such questions through to it,
// and no others. It does nothing where no domain is configured. Where the slot is not
// made, errors.Is(err, fs.ErrNotExist).
func (f *Fabric) Names(n int) (io.Closer, error) {
	if err := f.check(n); err != nil {
		return nil, err
	}
	if f.cfg.Databases.Domain == "" {
		return &names{}, nil
	}
	there, err := isNetNS(f.nsPath(n))
	if err == nil && !there {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("answer names of databases in slot %d: %w", n, err)
	}
	s := &names{domain: f.cfg.Databases.Domain, done: make(chan struct{})}
	err = ns.WithNetNSPath(f.nsPath(n), func(ns.NetNS) (err error) {
		s.conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(GatewayAddr, namesPort)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("answer names of databases in slot %d: %w", n, err)
	}
	go s.serve()
	return s, nil
}

// names answers one slot's guest.
type names struct {
	domain string
	conn   *net.UDPConn
	done   chan struct{}
}

func (s *names) Close() error {
	if s.conn == nil {
		return nil
	}
	err := s.conn.Close()
	<-s.done
	return err
}

func (s *names) serve() {
	defer close(s.done)
	b := make([]byte, maxQuestion)
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(b)
		if err != nil {
			// Only of a closed socket: what came of an answer before is not told to
			// one that has no peer.
			return
		}
		if answer := answerName(b[:n], s.domain); answer != nil {
			_, _ = s.conn.WriteToUDPAddrPort(answer, from) // lost like any datagram
		}
	}
}

// answerName returns the answer to a DNS message, or nil if it is no question. Every
// name right below the domain has the gateway's address and nothing else.
func answerName(message []byte, domain string) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(message)
	if err != nil || h.Response {
		return nil
	}
	answer := dnsmessage.Header{ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true}
	q, err := p.Question()
	if err != nil {
		answer.RCode = dnsmessage.RCodeFormatError
		return build(answer, nil)
	}
	id, below, _ := strings.Cut(q.Name.String(), ".")
	switch {
	case h.OpCode != 0:
		answer.RCode = dnsmessage.RCodeNotImplemented
	case id == "" || !strings.EqualFold(below, domain+".") || q.Class != dnsmessage.ClassINET:
		answer.RCode = dnsmessage.RCodeRefused
	}
	return build(answer, &q)
}

func build(h dnsmessage.Header, q *dnsmessage.Question) []byte {
	b := dnsmessage.NewBuilder(nil, h)
	if q == nil {
		return finish(&b, nil)
	}
	err := b.StartQuestions()
	if err == nil {
		err = b.Question(*q)
	}
	if err == nil && h.RCode == dnsmessage.RCodeSuccess && (q.Type == dnsmessage.TypeA || q.Type == dnsmessage.TypeALL) {
		if err = b.StartAnswers(); err == nil {
			err = b.AResource(dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: namesTTL}, dnsmessage.AResource{A: GatewayAddr.As4()})
		}
	}
	return finish(&b, err)
}

func finish(b *dnsmessage.Builder, err error) []byte {
	if err != nil {
		return nil
	}
	out, err := b.Finish()
	if err != nil {
		return nil
	}
	return out
}
