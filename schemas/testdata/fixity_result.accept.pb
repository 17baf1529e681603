
 9e2d7b6c5a4f40318f7e6d5c4b3a2918 7c1f5a0e93b24d68a1c2d3e4f5061728 a29c644bee39693d18938002f8724ddd"acme*22photos:2020/film.movHPXbreplacedhÒ’›àÏÀÁÀÚ™›àÏÀÁÀ¢ 827bf6d7c38b1bfee40a3ed5240e49d5ª§öÚÏ€ÑÊ²«
&acme/2/photos/2020%2Ffilm.mov/replaced 47dc22e01999939fcc48e92ec97d1f54 a29c644bee39693d18938002f8724ddd"S
1777862521987000000-12345""d41d8cd98f00b204e9800998ecf8427e"§™àÏ€ÑÊ “€€€€ *'
md5 ba0db2dea5ea1f1c759bbfa157cfd9642§öÚÏ€ÑÊ:eve@example.orgBa curator wrote itHRÖšàÏÀÁÀºaccept-refusedÂ7the store has another object than the one that was seen