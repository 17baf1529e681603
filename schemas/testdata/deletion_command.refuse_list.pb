
 5d7a0c6e41b94a0f8d1c2b3a4f5e6d7cacmephotos22: c06e8a2ead46bc448510ef7d394bf88dB db54f908f9372f96125d4984c0832aaerßô‡œÄ— zeve@example.orgíbrake-3f1c0a9e77b2önobody deleted these