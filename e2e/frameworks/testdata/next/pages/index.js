export async function getServerSideProps() {
  return { props: { at: new Date().toISOString() } };
}

export default function Home({ at }) {
  return <p>hello from next, {at}</p>;
}
