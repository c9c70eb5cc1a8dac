package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/raftstore/seal"
)

func initCommand() *cobra.Command {
	var (
		dir, from, operator string
		replicas            []string
	)
	cmd := &cobra.Command{
		Use:   "init --dir DIR --replica ID=HOST:PORT...",
		Short: "Create the keys of a cluster, or of another replica",
		Args:  cobra.NoArgs,
		Long: `Init creates a certificate authority and, below DIR, one directory per replica:
ca.crt, ca.key, node.crt, node.key, seal.key (which decrypts the secrets in the
control store) and replica.json (the replica's id and the cluster's first
members). DIR/operator contains a client certificate for the operator. HOST:PORT
is the replica's peer port, as other replicas and hosts reach it.

With --ca it creates the directory of another replica of an existing cluster.
Start that replica, then run berth raft add-peer. If no replica is left to add it,
start the cluster again: set BERTH_PEERS to all replicas on each of them.

Existing files are never overwritten. Anyone who has ca.key can impersonate any
part of the cluster: only root and the service should be able to read these
directories.`,
		Example: `  controlplane init --dir pki --replica a=10.0.0.1:7001 --replica b=10.0.0.2:7001 --replica c=10.0.0.3:7001
  controlplane init --dir pki --ca pki/a --replica d=10.0.0.4:7001`,
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "directory to write to (required)")
	f.StringArrayVar(&replicas, "replica", nil, "a replica, ID=HOST:PORT; once per replica (required)")
	f.StringVar(&from, "ca", "", "directory of an existing replica of the cluster")
	f.StringVar(&operator, "operator", "admin", "name on the operator's certificate")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if dir == "" || len(replicas) == 0 {
			return errors.New("init needs --dir and at least one --replica; see controlplane init --help")
		}
		var members []pki.Member
		for _, r := range replicas {
			m, err := controlplane.ParseMember(r)
			if err != nil {
				return fmt.Errorf("--replica: %w", err)
			}
			members = append(members, m)
		}
		now := time.Now()
		if from == "" {
			if err := pki.ValidName(operator); err != nil {
				return fmt.Errorf("--operator: %w", err)
			}
			sealKey, err := newSealKey()
			if err != nil {
				return err
			}
			if err := pki.InitCluster(dir, members, operator, sealKey, now); err != nil {
				return err
			}
		} else {
			for _, m := range members {
				if err := pki.AddReplica(dir, from, m, now); err != nil {
					return err
				}
			}
		}
		for _, m := range members {
			fmt.Fprintf(cmd.OutOrStdout(), "replica %s at %s: %s\n", m.ID, m.Address, filepath.Join(dir, m.ID))
		}
		if from == "" {
			fmt.Fprintf(cmd.OutOrStdout(), "operator %s: %s\n", operator, filepath.Join(dir, pki.FileOperatorDir))
		}
		ca, err := pki.LoadCA(filepath.Join(dir, members[0].ID))
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "CA SHA-256: %s\n", ca.Fingerprint())
		return nil
	}
	return cmd
}

// newSealKey creates a keyring and returns its file's content, which every replica
// gets.
func newSealKey() (content []byte, err error) {
	keys, err := seal.New()
	if err != nil {
		return nil, fmt.Errorf("make the sealing key: %w", err)
	}
	dir, err := os.MkdirTemp("", "berth-init-*")
	if err != nil {
		return nil, fmt.Errorf("make the sealing key: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, pki.FileSealKey)
	if err := keys.Save(path); err != nil {
		return nil, fmt.Errorf("make the sealing key: %w", err)
	}
	return os.ReadFile(path)
}
