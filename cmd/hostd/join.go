package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/hostd"
	"github.com/berth-cloud/berth/hostd/heartbeat"
)

func joinCommand() *cobra.Command {
	var in heartbeat.JoinRequest
	var dir string
	cmd := &cobra.Command{
		Use:   "join --peer HOST:PORT --token TOKEN --ca-sha256 DIGEST",
		Short: "Obtain this host's certificate from the control plane",
		Long: `Join exchanges a one-time token for this host's certificate. The private key is
created here and never leaves the host. The token is sent only to a replica of
the cluster whose CA has the given digest. An operator gets token and digest from
berth join-token create.`,
		Example: "  hostd join --peer 10.0.0.1:7001 --token bjt_... --ca-sha256 5f3c... --id h1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case len(in.Peers) == 0:
				return errors.New("--peer is missing: the host:port of a replica's peer port")
			case in.Token == "":
				return errors.New("--token is missing: berth join-token create prints one")
			case in.CASHA256 == "":
				return errors.New("--ca-sha256 is missing: berth join-token create prints it with the token")
			case in.HostID == "":
				return errors.New("--id (or BERTH_AGENT_ID) is missing: the id of this host, 1 to 8 of a-z and 0-9")
			}
			if err := hostd.Join(cmd.Context(), dir, in); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "host %s has joined; its certificate is in %s\n", in.HostID, dir)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&in.Peers, "peer", nil, "peer port of a replica, host:port; repeatable")
	f.StringVar(&in.Token, "token", "", "one-time join token")
	f.StringVar(&in.CASHA256, "ca-sha256", "", "SHA-256 of the cluster's CA certificate, hex")
	f.StringVar(&in.HostID, "id", os.Getenv("BERTH_AGENT_ID"), "id of this host")
	f.StringVar(&dir, "dir", envOr("BERTH_PKI_DIR", "/etc/berth/pki"), "directory for the certificate")
	return cmd
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}
