
 7c1f5a0e93b24d68a1c2d3e4f5061728acme2"photos*2020/film.mov08B a29c644bee39693d18938002f8724dddj÷ö‡œ¿¡¿äµ
&acme/2/photos/2020%2Ffilm.mov/replaced 47dc22e01999939fcc48e92ec97d1f54 a29c644bee39693d18938002f8724ddd"]
1777862521987000000-12345""d41d8cd98f00b204e9800998ecf8427e"ßô‡œÄ—  ìÄÄÄÄ (ç†›‡∞ä˝Åf*'
md5 ba0db2dea5ea1f1c759bbfa157cfd9642ßˆ⁄œÄ— :eve@example.orgBa curator wrote itHR÷ö‡œ¿¡¿